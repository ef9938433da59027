//! The colours of frames.

use super::super::tree::Kind;

/// Warm for user code, blue for the kernel, and green for what was inlined. The same name always has the same.
pub(in crate::export) fn colour(name: &str, kind: Kind) -> String {
    // FNV-1a, <http://www.isthe.com/chongo/tech/comp/fnv/>: the same on every machine.
    let hash = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = name.bytes().fold(0x811c_9dc5, hash);
    let mixed = hash ^ (hash >> 15);
    let part = |shift: u32| f64::from(mixed >> shift & 0xff) / 255.0;
    let (one, two) = (part(0), part(8));
    let (hue, saturation, lightness) = match kind {
        Kind::All => (45.0, 0.25, 0.78),
        Kind::Process => (38.0 + 8.0 * one, 0.42, 0.72 + 0.05 * two),
        Kind::User => (4.0 + 46.0 * one, 0.86, 0.58 + 0.08 * two),
        Kind::Inlined => (78.0 + 40.0 * one, 0.52, 0.60 + 0.08 * two),
        Kind::Interpreted => (268.0 + 28.0 * one, 0.48, 0.70 + 0.08 * two),
        Kind::Kernel | Kind::InlinedKernel => (203.0 + 24.0 * one, 0.62, 0.68 + 0.08 * two),
    };
    rgb(hue, saturation, lightness)
}

/// Red for what has grown by so large a share of itself, from -1 to 1, and blue for what has shrunk; grey for neither.
pub(in crate::export) fn change(growth: Option<f64>) -> String {
    let Some(growth) = growth else { return rgb(45.0, 0.06, 0.87) };
    // The page has the same, in `html/flame.js`. Small changes are to be seen, too.
    let size = growth.abs().min(1.0).sqrt();
    let hue = if growth > 0.0 { 8.0 } else { 213.0 };
    rgb(hue, 0.35 + 0.5 * size, 0.86 - 0.28 * size)
}

/// A colour as SVG and CSS write it, of its hue in degrees and shares of one.
/// <https://www.w3.org/TR/css-color-4/#hsl-to-rgb>
fn rgb(hue: f64, saturation: f64, lightness: f64) -> String {
    let reach = saturation * lightness.min(1.0 - lightness);
    let part = |n: f64| {
        let k = (n + hue / 30.0) % 12.0;
        255.0 * (lightness - reach * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0))
    };
    format!("rgb({:.0},{:.0},{:.0})", part(0.0), part(8.0), part(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_css() {
        assert_eq!(rgb(0.0, 1.0, 0.5), "rgb(255,0,0)");
        assert_eq!(rgb(210.0, 0.5, 0.4), "rgb(51,102,153)");
        assert_eq!(rgb(90.0, 0.0, 1.0), "rgb(255,255,255)");
        assert_eq!(colour("main", Kind::User), colour("main", Kind::User));
        assert_ne!(colour("main", Kind::User), colour("main", Kind::Kernel));
        assert_eq!(change(Some(1.0)), "rgb(239,81,57)");
        assert_eq!(change(None), "rgb(224,223,220)");
    }
}
