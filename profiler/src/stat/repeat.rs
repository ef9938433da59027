//! What several runs of a command have in common: the mean, and how sure that is.

/// The values of one event in each run, as a sum: Welford's method, which loses nothing to large values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    values: u32,
    sum: u128,
    mean: f64,
    /// The sum of the squares of the distances from the mean.
    squares: f64,
}

impl Spread {
    /// Adds the value of one more run.
    pub(crate) fn add(&mut self, value: u64) {
        self.values = self.values.saturating_add(1);
        self.sum = self.sum.saturating_add(value.into());
        let distance = value as f64 - self.mean;
        self.mean += distance / f64::from(self.values);
        self.squares += distance * (value as f64 - self.mean);
    }

    /// The mean, rounded; `None` if there is no value.
    pub(crate) fn mean(&self) -> Option<u64> {
        let values = u128::from(self.values);
        let mean = self.sum.checked_add(values / 2)?.checked_div(values)?;
        u64::try_from(mean).ok()
    }

    /// The standard deviation of the mean, in percent of it; `None` of less than two values.
    ///
    /// <https://en.wikipedia.org/wiki/Standard_error>
    pub(crate) fn deviation_percent(&self) -> Option<f64> {
        if self.values < 2 {
            return None;
        }
        let values = f64::from(self.values);
        let of_mean = (self.squares / (values - 1.0) / values).sqrt();
        Some(if self.mean > 0.0 { 100.0 * of_mean / self.mean } else { 0.0 })
    }
}

impl FromIterator<u64> for Spread {
    fn from_iter<I: IntoIterator<Item = u64>>(values: I) -> Self {
        let mut spread = Self::default();
        values.into_iter().for_each(|value| spread.add(value));
        spread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> (Option<u64>, Option<f64>) {
        let spread: Spread = values.iter().copied().collect();
        (spread.mean(), spread.deviation_percent())
    }

    #[test]
    fn the_mean_has_a_deviation_of_its_own() {
        assert_eq!(of(&[]), (None, None));
        assert_eq!(of(&[7]), (Some(7), None));
        assert_eq!(of(&[7, 7, 7]), (Some(7), Some(0.0)));
        assert_eq!(of(&[0, 0]), (Some(0), Some(0.0)));
        let (mean, deviation) = of(&[90, 100, 110]);
        // The deviation of the values is 10, and that of their mean 10 / √3.
        assert_eq!(mean, Some(100));
        assert!((deviation.unwrap() - 5.7735).abs() < 0.0001, "{deviation:?}");
    }

    #[test]
    fn large_values_keep_their_digits() {
        assert_eq!(of(&[u64::MAX, u64::MAX]), (Some(u64::MAX), Some(0.0)));
        assert_eq!(of(&[1, 2]).0, Some(2));
    }
}
