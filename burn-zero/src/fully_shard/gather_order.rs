//! [`GatherOrder`]: which unit comes next, learnt from the pass before. Pure.

use std::collections::HashMap;

use burn_dist::backend::Pass;

/// A unit that became active in a pass.
pub(crate) type Visit = (Pass, usize);

/// What followed two visits in a row when they were last seen. All ranks see the same visits, and so
/// foretell the same.
#[derive(Debug, Default)]
pub(crate) struct GatherOrder {
    next: HashMap<(Option<Visit>, Visit), Visit>,
}

impl GatherOrder {
    /// Notes that `next` followed.
    pub(crate) fn note(&mut self, before: Option<Visit>, last: Visit, next: Visit) {
        self.next.insert((before, last), next);
    }

    /// What will follow, if this was seen before.
    pub(crate) fn after(&self, before: Option<Visit>, last: Visit) -> Option<Visit> {
        self.next.get(&(before, last)).copied()
    }
}
