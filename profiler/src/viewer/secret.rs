//! What nobody can guess.

use std::{
    fs::File,
    io::{self, Read as _},
};

const BYTES: usize = 16;
/// How long one is, in digits.
pub(crate) const DIGITS: usize = 2 * BYTES;

/// A new one, in hexadecimal.
pub(crate) fn new() -> io::Result<String> {
    let mut secret = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(format!("{:0DIGITS$x}", u128::from_ne_bytes(secret)))
}

/// Whether both are the same, without telling by the time it takes how much of them is.
pub(crate) fn is_equal(a: &str, b: &str) -> bool {
    let differ = |all, (a, b): (u8, u8)| all | (a ^ b);
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_another_of_the_same_length() {
        let (one, other) = (new().unwrap(), new().unwrap());
        assert_eq!((one.len(), other.len()), (DIGITS, DIGITS));
        assert!(is_equal(&one, &one.clone()) && !is_equal(&one, &other));
        assert!(!is_equal(&one, &one[1..]) && !is_equal("", &one) && is_equal("", ""));
    }
}
