//! The text of sequencers.

use std::num::NonZeroU32;

use fencelock_core::{ClaimId, Error, LockName, Mode, Sequencer, Token};
use proptest::prelude::*;

fn sequencers() -> impl Strategy<Value = Sequencer> {
    let mode = prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Shared),
        Just(Mode::Permit {
            of: NonZeroU32::MIN
        }),
    ];
    let name = "[^\\p{Cc}]{1,80}";
    (name, mode, 0..1u64 << 53, any::<[u8; 16]>()).prop_map(|(name, mode, token, claim)| {
        Sequencer::new(
            LockName::new(&name).unwrap(),
            mode,
            Token(token),
            ClaimId::from_bytes(claim),
        )
    })
}

proptest! {
    #[test]
    fn printed_sequencers_can_be_parsed(sequencer in sequencers()) {
        let text = sequencer.to_string();
        prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b':' || b == b'%'), "{}", text);
        prop_assert_eq!(&text.parse::<Sequencer>().unwrap(), &sequencer);
        // A shortened text may be that of another sequencer, but never of the same one.
        for end in 0..text.len() {
            prop_assert_ne!(text[..end].parse::<Sequencer>().ok(), Some(sequencer.clone()));
        }
    }

    #[test]
    fn bad_text_causes_no_panic(text in ".{0,120}") {
        if let Ok(sequencer) = text.parse::<Sequencer>() {
            prop_assert!(sequencer.to_string().parse::<Sequencer>().is_ok());
        }
    }

    #[test]
    fn nearly_correct_text_causes_no_panic(
        sequencer in sequencers(), at in 0..200usize, put in any::<char>()
    ) {
        let text: String = sequencer.to_string();
        let at = at % text.len();
        let spoilt: String = [&text[..at], &put.to_string(), &text[at + 1..]].concat();
        match spoilt.parse::<Sequencer>() {
            Ok(read) => prop_assert!(read == sequencer || spoilt != text),
            Err(error) => {
                let named = matches!(error, Error::Invalid { .. });
                prop_assert!(named, "{}", error);
            }
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let claim = "00112233445566778899aabbccddeeff";
    let cases = [
        ("", "fl1:MODE"),
        ("fl2:x:1:y:z", "another version"),
        (&format!("fl1:e:1:{claim}:a"), "x, s or p"),
        (&format!("fl1:x::{claim}:a"), "2^53"),
        (&format!("fl1:x:-1:{claim}:a"), "2^53"),
        (&format!("fl1:x:+1:{claim}:a"), "2^53"),
        (&format!("fl1:x:9007199254740992:{claim}:a"), "2^53"),
        (&format!("fl1:x:99999999999999999999999:{claim}:a"), "2^53"),
        ("fl1:x:1:0011:a", "32 lower-case hex digits"),
        (&format!("fl1:x:1:{}:a", claim.to_uppercase()), "lower-case"),
        (&format!("fl1:x:1:{claim}:"), "empty"),
        (&format!("fl1:x:1:{claim}:%ff"), "UTF-8"),
        (&format!("fl1:x:1:{claim}:%2"), "two hex digits"),
        (&format!("fl1:x:1:{claim}:%%41"), "two hex digits"),
        (&format!("fl1:x:1:{claim}:%0a"), "control character"),
    ];
    for (text, said) in cases {
        let error = text.parse::<Sequencer>().unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[cfg(feature = "serde")]
#[test]
fn its_serialized_form_is_its_text() {
    let text = "fl1:s:7:00112233445566778899aabbccddeeff:a%2Fb";
    let sequencer: Sequencer = text.parse().unwrap();
    let json = serde_json::to_string(&(&sequencer, sequencer.token, &sequencer.name)).unwrap();
    assert_eq!(json, format!("[\"{text}\",7,\"a/b\"]"));
    let read: (Sequencer, Token, LockName) = serde_json::from_str(&json).unwrap();
    assert_eq!(read, (sequencer.clone(), sequencer.token, sequencer.name));
    assert!(serde_json::from_str::<Sequencer>("\"fl1\"").is_err());
    assert!(serde_json::from_str::<LockName>("\"\"").is_err());
}
