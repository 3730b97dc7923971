//! What is fuzzed: every parser of text from outside. A parser takes any bytes. It must not panic, a value that it
//! accepts must read back unchanged, and no error may show a password. The cargo-fuzz targets in this folder and the
//! short run within the tests share these functions.

use fencelock_core::{ClaimId, LockName, Sequencer, StoreUrl, parse_duration};

/// One parser.
pub(crate) type Target = fn(&str);

/// All of them, by name.
pub(crate) const TARGETS: [(&str, Target); 5] = [
    ("store_url", store_url),
    ("sequencer", sequencer),
    ("lock_name", lock_name),
    ("claim_id", claim_id),
    ("duration", duration),
];

/// A store's URL.
pub(crate) fn store_url(text: &str) {
    const SECRET: &str = "hunter2-secret";
    drop(StoreUrl::parse(text).map(StoreUrl::finish));
    // The same with a password, which must appear nowhere.
    let Some((scheme, rest)) = text.split_once("://") else {
        return;
    };
    if rest.contains(SECRET) || scheme.contains(SECRET) {
        return;
    }
    match StoreUrl::parse(&format!("{scheme}://user:{SECRET}@{rest}")) {
        Ok(url) => {
            assert!(!url.to_string().contains(SECRET), "{url}");
            assert!(!format!("{url:?}").contains(SECRET), "{url:?}");
        }
        Err(error) => assert!(!error.to_string().contains(SECRET), "{error}"),
    }
}

/// A grant in printable form.
pub(crate) fn sequencer(text: &str) {
    if let Ok(sequencer) = text.parse::<Sequencer>() {
        let printed = sequencer.to_string();
        assert_eq!(
            printed.parse::<Sequencer>().ok(),
            Some(sequencer),
            "{printed}"
        );
    }
}

/// A lock's name.
pub(crate) fn lock_name(text: &str) {
    if let Ok(name) = LockName::new(text) {
        assert_eq!(name.as_str(), text);
        assert!(!text.is_empty() && text.len() <= 512 && !text.contains(char::is_control));
    }
}

/// A claim's id.
pub(crate) fn claim_id(text: &str) {
    if let Ok(id) = text.parse::<ClaimId>() {
        assert_eq!(id.to_string(), text);
    }
}

/// A duration.
pub(crate) fn duration(text: &str) {
    if let Ok(duration) = parse_duration("duration", text) {
        let again = format!("{}ns", duration.as_nanos());
        drop(parse_duration("duration", &again));
    }
}
