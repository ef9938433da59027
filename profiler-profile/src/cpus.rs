//! CPU lists, as the kernel and its tools write them: `0-3,7`.

use std::{collections::BTreeSet, fmt, str::FromStr};

/// More than any kernel numbers: the limit keeps `0-4294967295` from filling the memory.
const LIMIT: u32 = 1 << 16;

/// A set of CPU numbers, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<u32>);

impl CpuList {
    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Whether the CPU is in the list.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// How many CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPUs of this list that the other doesn't have.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| -> Result<u32, String> {
            // `parse` alone would take a plus sign.
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = if digits { text.parse().ok() } else { None };
            number
                .filter(|&cpu| cpu < LIMIT)
                .ok_or_else(|| format!("'{text}' is not a CPU number; a list looks like 0-3,7"))
        };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',') {
            match part.split_once('-') {
                None => {
                    cpus.insert(number(part)?);
                }
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(format!("'{part}' goes backwards; a list looks like 0-3,7"));
                    }
                    cpus.extend(first..=last);
                }
            }
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|&next| next == last + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpus(text: &str) -> Vec<u32> {
        text.parse::<CpuList>().unwrap().iter().collect()
    }

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(cpus("0\n"), [0]);
        assert_eq!(cpus("0-1\n"), [0, 1]);
        assert_eq!(cpus("0-3,7,9-10"), [0, 1, 2, 3, 7, 9, 10]);
        assert_eq!(cpus("5,1,5"), [1, 5]);
    }

    #[test]
    fn refuses_the_rest() {
        for wrong in ["", ",", "1,", "-1", "1-", "3-1", "a", "1-2-3", "0x1", "+1", "0-4294967295"] {
            assert!(wrong.parse::<CpuList>().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(set in prop::collection::btree_set(0_u32..300, 1..60)) {
            let list = CpuList(set);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }

        #[test]
        fn any_text_is_a_list_or_an_error(text in "[-0-9, a]{0,20}") {
            let _ = text.parse::<CpuList>();
        }
    }
}
