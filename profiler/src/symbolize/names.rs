//! Names of functions, source files and modules, each kept once: a function has many addresses.

use std::sync::Arc;

use crate::cache::Bounded;

/// Bytes of names that are kept here. What is evicted lives on where it is used.
const LIMIT_BYTES: usize = 8 << 20;

/// Names that were seen lately.
#[derive(Debug)]
pub(super) struct Names(Bounded<Arc<str>, Arc<str>>);

impl Default for Names {
    fn default() -> Self {
        Self(Bounded::new(LIMIT_BYTES, |name| name.len()))
    }
}

impl Names {
    /// The name, as it is kept.
    pub(super) fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(name) = self.0.get(name) {
            return name;
        }
        let name: Arc<str> = Arc::from(name);
        self.0.insert(Arc::clone(&name), Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once() {
        let mut names = Names::default();
        let [one, same, other] = ["one", "one", "other"].map(|name| names.intern(name));
        assert!(Arc::ptr_eq(&one, &same) && (&*one, &*other) == ("one", "other"));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut names = Names::default();
        let long = "x".repeat(LIMIT_BYTES / 8);
        for number in 0..20 {
            let name = format!("{long}{number}");
            assert_eq!(&*names.intern(&name), name);
            let held = names.0.account("");
            assert!(held.bytes <= LIMIT_BYTES as u64 && held.entries <= 8, "{held:?}");
        }
    }
}
