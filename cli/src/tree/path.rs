// SPDX-License-Identifier: Apache-2.0
//! Names of shards as paths below a directory. They may come from a drive, so they are not trusted.

/// The longest name in a directory that Linux has.
const MAX_PART_BYTES: usize = 255;

/// Fails with the reason why a shard's name is no path below a directory.
pub fn check(name: &str) -> Result<(), &'static str> {
    if name.starts_with('/') {
        return Err("its name is an absolute path");
    }
    for part in name.split('/') {
        match part {
            "" => return Err("its name has an empty part"),
            "." | ".." => return Err("its name has a part that is . or .."),
            part if part.contains('\0') => return Err("its name has a zero byte"),
            part if part.len() > MAX_PART_BYTES => {
                return Err("its name has a part of more than 255 bytes");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Number of parts of a path; none for the directory itself.
pub fn part_count(name: &str) -> usize {
    name.split('/').filter(|part| !part.is_empty()).count()
}

/// The directories that a path lies in, from the top.
pub fn parents(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').map(|(at, _)| &name[..at])
}

/// Whether a link's target stays in the tree, for a link that lies `depth` directories below the
/// tree's top: relative, with `..` only at its front and at most `depth` times. The first parts
/// then lead to a directory of the tree, whatever other links there are, and by the same rule
/// those lead to the tree, too.
pub fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.first().is_none_or(|byte| *byte == b'/') || target.contains(&0) {
        return false;
    }
    let (mut ups, mut is_front) = (0, true);
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if is_front => ups += 1,
            b".." => return false,
            _ => is_front = false,
        }
    }
    ups <= depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_a_directory_are_taken() {
        let long = "x".repeat(255);
        for good in ["a", "..a", "a b", ".hidden", "-rf", "a/b/c", "...", &long, "a\n/b"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let too_long = format!("a/{}", "x".repeat(256));
        for bad in
            ["", ".", "..", "/", "/etc/passwd", "a//b", "a/", "../x", "a/../../b", "a/./b", "a\0"]
        {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        assert!(check(&too_long).is_err());
        assert_eq!(parents("a/b/c").collect::<Vec<_>>(), ["a", "a/b"]);
        assert_eq!((part_count("a/b"), part_count("")), (2, 0));
    }

    #[test]
    fn links_stay_in_the_tree_or_do_not() {
        for (target, depth) in
            [("x", 0), ("a/b", 0), ("../x", 1), ("./.././../x/y", 2), ("..", 1), (".", 0)]
        {
            assert!(stays_inside(target.as_bytes(), depth), "{target} {depth}");
        }
        for (target, depth) in
            [("", 5), ("/x", 5), ("../x", 0), ("../../x", 1), ("a/../b", 5), ("a\0b", 5)]
        {
            assert!(!stays_inside(target.as_bytes(), depth), "{target:?} {depth}");
        }
    }
}
