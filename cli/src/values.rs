// SPDX-License-Identifier: Apache-2.0
//! Values of options: sizes, numbers above 0, lists of cores.

/// The largest size that an option takes: the largest file offset.
const MAX_SIZE_BYTES: u64 = i64::MAX as u64;
const MAX_CORE: usize = 65_535;

/// Core numbers. A type of its own, so that clap takes one value for the whole list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cores(pub Vec<usize>);

/// A list of cores, as in `2,3` or `4-7`.
///
/// # Errors
/// When the text is not such a list.
pub fn parse_cores(text: &str) -> Result<Cores, String> {
    let number = |text: &str| {
        let parsed = text.trim().parse::<usize>().ok().filter(|core| *core <= MAX_CORE);
        parsed.ok_or_else(|| format!("{text:?} is not a core; write a list as in 2,3 or 4-7"))
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(format!("{part:?} ends below its start; write {last}-{first}"));
                }
                cores.extend(first..=last);
            }
            None => cores.push(number(part)?),
        }
    }
    Ok(Cores(cores))
}

/// A size in bytes: `4096`, `4KiB`, `4K` (the same) or `4KB` (4000).
///
/// # Errors
/// When the text is not a size, or not one below 2^63.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    // One letter alone counts in powers of 1024, as in coreutils.
    let one_letter = text.len() >= 2
        && text.ends_with(|c: char| "KMGTPkmgtp".contains(c))
        && text[..text.len() - 1].ends_with(|c: char| c.is_ascii_digit() || c == ' ');
    let whole = if one_letter { format!("{text}iB") } else { text.to_owned() };
    let is_long_number = text.len() > 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    match whole.parse::<bytesize::ByteSize>().map(|size| size.as_u64()) {
        Ok(bytes) if bytes <= MAX_SIZE_BYTES => Ok(bytes),
        // The parser clips what does not fit to the largest number.
        Err(_) if !is_long_number => {
            Err(format!("{text:?} is not a size; write it as 4096, 64KiB, 1.5GiB or 4KB"))
        }
        _ => Err(format!("{text} is too large: a size is below 2^63 bytes (8 EiB)")),
    }
}

/// A number above 0.
///
/// # Errors
/// When the text is not one.
pub fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("{text:?} is not a number above 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4KiB", 4096),
            ("4kib", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("4KB", 4000),
            ("1GiB", 1 << 30),
            ("1.5 GiB", 3 << 29),
            ("2G", 2 << 30),
            ("3T", 3 << 40),
            ("7EiB", 7 << 60),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "x", "-1", "4XB", "é", "4Ki B"] {
            assert!(parse_size(text).unwrap_err().contains("is not a size"), "{text}");
        }
    }

    #[test]
    fn sizes_of_two_to_the_63_and_more_are_too_large() {
        assert_eq!(parse_size("9223372036854775807"), Ok(MAX_SIZE_BYTES));
        for text in [
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999999",
            "8EiB",
            "16EiB",
            "99EiB",
            "9000000PiB",
            "99999999T",
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains("too large"), "{text}: {error}");
        }
    }

    #[test]
    fn cores() {
        assert_eq!(parse_cores("2,4-6"), Ok(Cores(vec![2, 4, 5, 6])));
        for text in ["", "a", "3-1", "1,,2", "1-", "99999999"] {
            assert!(parse_cores(text).is_err(), "{text}");
        }
    }
}
