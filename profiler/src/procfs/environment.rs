//! `/proc/PID/environ`: what a process was told of itself, for those who watch it.
//!
//! The variables are those of OpenTelemetry's SDKs: `OTEL_SERVICE_NAME`, and `OTEL_RESOURCE_ATTRIBUTES`, which has pairs
//! `key=value` with commas between, each value percent-encoded.

use percent_encoding::percent_decode_str;

/// The longest name of a service, in bytes.
const MAX_NAME: usize = 255;

/// The name of the service that a process is part of, of the text of its environment: `NAME=value`, each ended by a NUL.
#[must_use]
pub(crate) fn service(environment: &str) -> Option<String> {
    let variable = |name: &str| {
        let mut all = environment.split('\0').filter_map(|it| it.split_once('='));
        all.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let told = variable("OTEL_SERVICE_NAME").and_then(name);
    told.or_else(|| {
        let attributes = variable("OTEL_RESOURCE_ATTRIBUTES")?;
        let mut pairs = attributes.split(',').filter_map(|it| it.split_once('='));
        let (_, value) = pairs.find(|(key, _)| key.trim() == "service.name")?;
        name(&percent_decode_str(value.trim()).decode_utf8_lossy())
    })
}

/// A name that says something, without what surrounds it.
fn name(text: &str) -> Option<String> {
    let text = text.trim();
    let end = (0..=MAX_NAME.min(text.len())).rev().find(|&end| text.is_char_boundary(end))?;
    text.get(..end).filter(|it| !it.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn its_own_variable_comes_before_the_attributes() {
        let both = "A=b\0OTEL_RESOURCE_ATTRIBUTES=service.name=shop\0OTEL_SERVICE_NAME=cart\0";
        assert_eq!(service(both).as_deref(), Some("cart"));
        let attributes = "OTEL_RESOURCE_ATTRIBUTES=a=b, service.name = my%20sh%c3%b6p%2C%zz,x=y\0";
        assert_eq!(service(attributes).as_deref(), Some("my shöp,%zz"));
        let empty = "OTEL_SERVICE_NAME= \0OTEL_RESOURCE_ATTRIBUTES=service.name=shop\0";
        assert_eq!(service(empty).as_deref(), Some("shop"));
    }

    #[test]
    fn who_says_nothing_has_no_name() {
        for text in [
            "",
            "\0\0",
            "OTEL_SERVICE_NAME",
            "MY_OTEL_SERVICE_NAME=a\0",
            "OTEL_RESOURCE_ATTRIBUTES=host.service.name=a,b\0",
        ] {
            assert_eq!(service(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let long = format!("OTEL_SERVICE_NAME={}\0", "ä".repeat(200));
        assert_eq!(service(&long).unwrap(), "ä".repeat(127));
    }

    proptest! {
        #[test]
        fn any_text_is_harmless(text in "(OTEL_SERVICE_NAME=)?(OTEL_RESOURCE_ATTRIBUTES=service.name=)?\\PC*") {
            prop_assert!(service(&text).is_none_or(|it| !it.is_empty() && it.len() <= MAX_NAME));
        }
    }
}
