//! Rust as tokens.

use super::*;

/// Comments are left out, so that prose and examples in documentation are not code.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let (end, keep) = token_end(&chars, at);
        let part = &chars[at..end];
        if keep {
            let text = part.iter().collect();
            found.push(Token { line, text });
        }
        line += part.iter().filter(|&&c| c == '\n').count();
        at = end;
    }
    found
}

/// Where the token, comment or gap that starts at `at` ends, and whether it is a token.
pub(crate) fn token_end(chars: &[char], at: usize) -> (usize, bool) {
    let rest = &chars[at..];
    let until = |from: usize, stop: &dyn Fn(&[char]) -> bool| {
        (at + from..chars.len())
            .find(|&i| stop(&chars[i..]))
            .unwrap_or(chars.len())
    };
    let closed = |i: usize| (i + 1).min(chars.len());
    match rest {
        ['/', '/', ..] => (until(2, &|c| c[0] == '\n'), false),
        ['/', '*', ..] => (block_comment_end(chars, at), false),
        ['\'', '\\', ..] => (closed(until(3, &|c| c[0] == '\'')), true),
        ['\'', _, '\'', ..] => (at + 3, true),
        ['"', ..] => (string_end(chars, at), true),
        [c, ..] if c.is_alphanumeric() || *c == '_' => {
            let end = until(1, &|c| !(c[0].is_alphanumeric() || c[0] == '_'));
            let hashes = chars[end..].iter().take_while(|&&c| c == '#').count();
            let raw = matches!(chars[at..end], ['r'] | ['b' | 'c', 'r']);
            if raw && chars.get(end + hashes) == Some(&'"') {
                let mut close = vec!['"'];
                close.extend(std::iter::repeat_n('#', hashes));
                let body = end + hashes + 1 - at;
                let close_at = until(body, &|c| c.starts_with(&close));
                return ((close_at + close.len()).min(chars.len()), true);
            }
            (end, true)
        }
        [c, ..] => (at + 1, !c.is_whitespace()),
        [] => (at, false),
    }
}

pub(crate) fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at < chars.len() {
        match chars[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at
}

pub(crate) fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The text of token `at + offset`, empty outside.
pub(crate) fn word(tokens: &[Token], at: usize, offset: isize) -> &str {
    at.checked_add_signed(offset)
        .and_then(|i| tokens.get(i))
        .map_or("", |token| token.text.as_str())
}

pub(crate) fn follows(tokens: &[Token], at: usize, texts: &[&str]) -> bool {
    (0..)
        .zip(texts)
        .all(|(i, text)| word(tokens, at, i) == *text)
}

/// The index after the bracket that closes the one at `at`.
pub(crate) fn closing(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// The first names after `root::`, where `at` is behind it: one, or each of a braced list.
pub(crate) fn heads(tokens: &[Token], at: usize) -> Vec<(usize, &str)> {
    if word(tokens, at, 0) != "{" {
        return tokens[at..]
            .first()
            .map(|t| (t.line, t.text.as_str()))
            .into_iter()
            .collect();
    }
    let end = closing(tokens, at) - 1;
    let (mut found, mut i) = (Vec::new(), at + 1);
    while i < end {
        found.push((tokens[i].line, tokens[i].text.as_str()));
        while i < end && tokens[i].text != "," {
            i = if tokens[i].text == "{" {
                closing(tokens, i)
            } else {
                i + 1
            };
        }
        i += 1;
    }
    found
}

/// Every `root::NAME`, with its line.
pub(crate) fn paths_from<'a>(tokens: &'a [Token], root: &str) -> Vec<(usize, &'a str)> {
    (0..tokens.len())
        .filter(|&at| follows(tokens, at, &[root, ":", ":"]))
        .flat_map(|at| heads(tokens, at + 3))
        .collect()
}

/// Every `super::...::NAME` that reaches the root of the crate from a module `depth` below it.
pub(crate) fn supers_to_root(tokens: &[Token], depth: usize) -> Vec<(usize, &str)> {
    let (mut found, mut inline, mut open, mut at) = (Vec::new(), Vec::new(), 0_usize, 0);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "{" => {
                if word(tokens, at, -2) == "mod" {
                    inline.push(open);
                }
                open += 1;
            }
            "}" => {
                open = open.saturating_sub(1);
                if inline.last() == Some(&open) {
                    inline.pop();
                }
            }
            "super" => {
                let mut ups = 0;
                while follows(tokens, at, &["super", ":", ":"]) {
                    (ups, at) = (ups + 1, at + 3);
                }
                if ups == 0 {
                    at += 1;
                } else if ups >= depth + inline.len() {
                    found.extend(heads(tokens, at));
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The tokens without the items that only tests compile.
pub(crate) fn shipped(tokens: &[Token]) -> Vec<&Token> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if follows(tokens, at, &["#", "[", "cfg"]) {
            let end = closing(tokens, at + 1);
            let says = |text| tokens[at..end].iter().any(|t| t.text == text);
            if says("test") && !says("not") {
                at = item_end(tokens, end);
                continue;
            }
        }
        kept.push(&tokens[at]);
        at += 1;
    }
    kept
}

pub(crate) fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            ";" => return at + 1,
            "{" => return closing(tokens, at),
            "(" | "[" => at = closing(tokens, at),
            _ => at += 1,
        }
    }
    at
}
