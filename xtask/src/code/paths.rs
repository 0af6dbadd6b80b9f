//! The paths that a file names: `use` trees unfolded, inline paths (`a::b::f()`) as they stand.
//!
//! A path is text. What it resolves to is decided by [`super::tree`]; [`named_paths`] resolves `super` and `self` only.

use super::source::{is_word, tokens};

/// One path of a file.
pub(crate) struct Named {
    /// Offset of its first token; for a `use` tree the offset of the tree.
    pub(crate) offset: usize,
    /// The path as written, `::self` at its end removed.
    pub(crate) path: String,
    /// The name a `use` binds it to; none for an inline path.
    pub(crate) binds: Option<String>,
    /// True for a leaf of a `pub use` (of any visibility).
    pub(crate) is_reexport: bool,
}

/// Every path that `code` names.
pub(crate) fn paths(code: &str) -> Vec<Named> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let (offset, token) = tokens[at];
        let before = at.checked_sub(1).map_or("", |at| tokens[at].1);
        let starts = before != "::" && is_word(token);
        if !starts || tokens.get(at + 1).is_none_or(|t| t.1 != "::") {
            at += 1;
            continue;
        }
        let is_use = before == "use";
        let is_reexport = is_use && at > 1 && matches!(tokens[at - 2].1, "pub" | ")");
        let mut leaves = Vec::new();
        at = unfold(&tokens, at, "", &mut leaves);
        found.extend(leaves.into_iter().map(|(path, name)| Named {
            offset,
            path,
            binds: is_use.then_some(name),
            is_reexport,
        }));
    }
    found
}

/// Every path that the code of the file at `path` names, with `super` and `self` resolved.
pub(crate) fn named_paths(path: &str, code: &str) -> Vec<(usize, String)> {
    let own = module_of(path);
    paths(code)
        .into_iter()
        .map(|named| (named.offset, absolute(&named.path, &own)))
        .collect()
}

/// Follows one path or `use` tree from the token at `at` and adds its leaves (path, bound name); returns the token
/// after it.
fn unfold(
    tokens: &[(usize, &str)],
    at: usize,
    prefix: &str,
    leaves: &mut Vec<(String, String)>,
) -> usize {
    let Some((_, token)) = tokens.get(at) else {
        return at;
    };
    if *token == "{" {
        let mut at = at + 1;
        while let Some((_, token)) = tokens.get(at) {
            match *token {
                "}" => return at + 1,
                "," => at += 1,
                _ => at = unfold(tokens, at, prefix, leaves).max(at + 1),
            }
        }
        return at;
    }
    let mut full = match (prefix, *token) {
        ("", token) => token.to_string(),
        (prefix, "self") => prefix.to_string(),
        (prefix, token) => format!("{prefix}::{token}"),
    };
    let next = tokens.get(at + 1).map(|t| t.1);
    let behind = tokens.get(at + 2).map(|t| t.1);
    let last = |full: &str| full.rsplit("::").next().unwrap_or("").to_string();
    match (next, behind) {
        (Some("::"), Some(word)) if is_word(word) || word == "{" || word == "*" => {
            unfold(tokens, at + 2, &full, leaves)
        }
        (Some("as"), Some(name)) => {
            leaves.push((full, name.to_string()));
            at + 3
        }
        (Some("!"), _) => {
            full.push('!');
            let name = last(&full);
            leaves.push((full, name));
            at + 2
        }
        _ => {
            let name = last(&full);
            leaves.push((full, name));
            at + 1
        }
    }
}

/// The module of a file as path segments below the crate.
pub(crate) fn module_of(path: &str) -> Vec<String> {
    let inner = path.split_once("/src/").map_or("", |(_, inner)| inner);
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    inner
        .split('/')
        .filter(|part| !["mod", "lib", "main", ""].contains(part))
        .map(String::from)
        .collect()
}

/// `super::x` and `self::x` in the module `own` as `crate::…`.
fn absolute(named: &str, own: &[String]) -> String {
    let mut module = own.to_vec();
    let mut rest = named;
    let mut relative = false;
    loop {
        if let Some(tail) = rest.strip_prefix("super::") {
            module.pop();
            rest = tail;
        } else if let Some(tail) = rest.strip_prefix("self::") {
            rest = tail;
        } else {
            break;
        }
        relative = true;
    }
    if !relative {
        return named.to_string();
    }
    let mut full = vec!["crate".to_string()];
    full.append(&mut module);
    full.push(rest.to_string());
    full.join("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_trees_unfold_and_bind_names() {
        let code = "pub(crate) use a::{self, b::{c as d, e}, f};\nfn g() { h::i(); j::k!(); }";
        let found: Vec<_> = paths(code)
            .into_iter()
            .map(|n| (n.path, n.binds.unwrap_or_default(), n.is_reexport))
            .collect();
        let expected = [
            ("a", "a", true),
            ("a::b::c", "d", true),
            ("a::b::e", "e", true),
            ("a::f", "f", true),
            ("h::i", "", false),
            ("j::k!", "", false),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(path, name, reexport)| (path.to_string(), name.to_string(), reexport))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn super_and_self_are_resolved() {
        let found = named_paths(
            "crates/x/src/a/b.rs",
            "use super::{c, super::d}; self::e::f();",
        );
        let found: Vec<_> = found.into_iter().map(|(_, path)| path).collect();
        assert_eq!(found, ["crate::a::c", "crate::d", "crate::a::b::e::f"]);
    }
}
