//! Slurm's short form of host lists.

/// The first host of a list such as `node[03-07,12],login1`; `None` if there is none.
pub(super) fn first_host(list: &str) -> Option<String> {
    let end = match (list.find('['), list.find(',')) {
        (Some(bracket), Some(comma)) if comma < bracket => comma,
        (None, Some(comma)) => comma,
        (None, None) => list.len(),
        (Some(bracket), _) => {
            let close = bracket + list[bracket..].find(']')?;
            let first = list[bracket + 1..close].split([',', '-']).next()?;
            let rest = list[close + 1..].split(',').next()?;
            return Some(format!("{}{first}{rest}", &list[..bracket]));
        }
    };
    let host = list[..end].trim();
    (!host.is_empty()).then(|| host.to_string())
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl super::World {
    /// The first host of Slurm's list.
    pub(crate) fn fuzz_first_host(list: &str) -> Option<String> {
        first_host(list)
    }
}

#[cfg(test)]
mod tests {
    use super::first_host;

    #[test]
    fn the_first_host_is_found_in_every_form() {
        for (list, host) in [
            ("node[03-07,12],login1", Some("node03")),
            ("node[12,15]", Some("node12")),
            ("a1,b[2-3]", Some("a1")),
            ("single", Some("single")),
            ("rack[1-2]-gpu", Some("rack1-gpu")),
            ("broken[1", None),
            ("", None),
        ] {
            assert_eq!(first_host(list).as_deref(), host, "{list}");
        }
    }
}
