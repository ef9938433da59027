//! What a store's answer means.

use std::time::Duration;

use jiff::{Timestamp, fmt::rfc2822};

use super::store::Store;

/// What a store has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) retry_after: Option<String>,
    /// The first part of it.
    pub(super) body: Vec<u8>,
}

/// What has become of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The store has it, apart from so many profiles.
    Taken { rejected: u64, why: String },
    /// It will never take it.
    Refused(String),
    /// It may take it another time.
    Away { why: String, retry_after: Option<Duration> },
}

/// So much of an answer is told.
const MAX_TOLD: usize = 200;

pub(super) fn judge(store: &Store, answer: &Answer) -> Verdict {
    let Answer { status, content_type, .. } = answer;
    let is_page = content_type.starts_with("text/html");
    match status {
        200..=299 if is_page => {
            // Whatever stands in its place, as a page to log in, may be gone later.
            let why = format!("answered with a page ({content_type}): no such store is there");
            Verdict::Away { why, retry_after: None }
        }
        200..=299 => match (store.rejected)(content_type, &answer.body) {
            Some((rejected, why)) => Verdict::Taken { rejected, why: told(&why) },
            None => {
                let why = format!("answered {status} with what no such store says");
                Verdict::Away { why, retry_after: None }
            }
        },
        429 | 502..=504 => away(answer),
        500..=599 if store.retries_all_5xx => away(answer),
        _ if is_page => Verdict::Refused(format!("answered {status}")),
        _ => Verdict::Refused(format!("answered {status}{}", reason(answer))),
    }
}

fn away(answer: &Answer) -> Verdict {
    let retry_after = answer.retry_after.as_deref();
    Verdict::Away {
        why: format!("answered {}{}", answer.status, reason(answer)),
        retry_after: retry_after.and_then(|it| parse_retry_after(it, Timestamp::now())),
    }
}

/// What an answer says in words.
fn reason(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    let is_text = !text.contains('\u{fffd}') && !text.trim().is_empty();
    if is_text { format!(": {}", told(text.trim())) } else { String::new() }
}

fn told(text: &str) -> String {
    let short: String = text.chars().take(MAX_TOLD).collect();
    profiler_profile::printable::printable(&short).into_owned()
}

/// Seconds, or a date.
fn parse_retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{super::store::*, *};

    fn answer(status: u16, content_type: &str, body: &[u8]) -> Answer {
        let content_type = content_type.into();
        Answer { status, content_type, retry_after: None, body: body.to_vec() }
    }

    fn word(store: &Store, answer: &Answer) -> &'static str {
        match judge(store, answer) {
            Verdict::Taken { rejected: 0, .. } => "taken",
            Verdict::Taken { .. } => "partial",
            Verdict::Refused(_) => "refused",
            Verdict::Away { .. } => "away",
        }
    }

    #[test]
    fn each_status_has_one_meaning() {
        for (status, of_otlp, of_others) in [
            (200, "taken", "taken"),
            (202, "taken", "taken"),
            (301, "refused", "refused"),
            (400, "refused", "refused"),
            (401, "refused", "refused"),
            (404, "refused", "refused"),
            (413, "refused", "refused"),
            (429, "away", "away"),
            (500, "refused", "away"),
            (501, "refused", "away"),
            (502, "away", "away"),
            (503, "away", "away"),
            (504, "away", "away"),
        ] {
            let it = answer(status, "application/json", b"");
            assert_eq!(word(&OTLP, &it), of_otlp, "{status}");
            assert_eq!(word(&PYROSCOPE, &it), of_others, "{status}");
            assert_eq!(word(&PARCA, &it), of_others, "{status}");
        }
    }

    #[test]
    fn a_page_is_no_store_and_a_part_may_be_refused() {
        let page = answer(200, "text/html; charset=utf-8", b"<html>log in</html>");
        for store in [&OTLP, &PYROSCOPE, &PARCA] {
            assert_eq!(word(store, &page), "away");
        }
        let unlabelled = answer(200, "application/x-protobuf", b"<html>log in</html>");
        assert_eq!(word(&OTLP, &unlabelled), "away");
        // Sent again and again, it would be there more often each time.
        let other = answer(200, "text/plain", b"ok\n");
        assert_eq!(word(&OTLP, &other), "taken");
        // rejected_profiles: 2, error_message: "old"
        let partial = [0x0a, 7, 8, 2, 0x12, 3, b'o', b'l', b'd'];
        let verdict = judge(&OTLP, &answer(200, "application/x-protobuf", &partial));
        assert_eq!(verdict, Verdict::Taken { rejected: 2, why: "old".into() });
    }

    #[test]
    fn what_is_told_of_an_answer_is_short_and_printable() {
        let body = format!("no such tenant\x1b[2J{}", "x".repeat(1000));
        let Verdict::Refused(why) = judge(&OTLP, &answer(401, "text/plain", body.as_bytes()))
        else {
            panic!("refused")
        };
        assert!(why.starts_with(r"answered 401: no such tenant\x1b[2Jxxx"), "{why}");
        assert!(why.len() < 300);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now: Timestamp = "2026-11-24T12:00:00Z".parse().unwrap();
        let parse = |text| parse_retry_after(text, now).map(|it| it.as_secs());
        assert_eq!(parse("7"), Some(7));
        assert_eq!(parse("Tue, 24 Nov 2026 12:01:00 GMT"), Some(60));
        assert_eq!(parse("Tue, 24 Nov 2026 11:00:00 GMT"), Some(0));
        assert_eq!(parse("soon"), None);
        assert_eq!(parse("-1"), None);
        let mut busy = answer(429, "", b"");
        busy.retry_after = Some("7".into());
        let Verdict::Away { retry_after, .. } = judge(&OTLP, &busy) else { panic!("away") };
        assert_eq!(retry_after, Some(Duration::from_secs(7)));
    }
}
