//! The forms of texts and numbers in JSON that have their own types here, for the OpenAPI document.

#![allow(
    dead_code,
    reason = "these stand for types of another crate, and only their schemas are used"
)]

use utoipa::ToSchema;

/// The name of a lock: 1 to 512 bytes of UTF-8, without control characters.
#[derive(ToSchema)]
#[schema(
    min_length = 1,
    max_length = 512,
    pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
)]
pub struct LockName(String);

/// A claim: the first 20 hex digits of the SHA-256 of its key, and 12 of a count.
#[derive(ToSchema)]
#[schema(pattern = "^[0-9a-f]{32}$")]
pub struct ClaimId(String);

/// The key of claims: a secret with 256 random bits.
#[derive(ToSchema)]
#[schema(pattern = "^[A-Za-z0-9_-]{43,86}$")]
pub struct Key(String);

/// A fencing token.
#[derive(ToSchema)]
#[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
pub struct Token(u64);

/// A grant as a text for the protected resource: version, mode, token, claim and name, which is percent-encoded.
#[derive(ToSchema)]
#[schema(pattern = "^fl1:[xsp]:[0-9]{1,16}:[0-9a-f]{32}:.+$")]
pub struct Sequencer(String);

/// How many permits there are.
#[derive(ToSchema)]
#[schema(minimum = 1)]
pub struct PermitCount(u32);
