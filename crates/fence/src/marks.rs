//! The rule of every fence.

use std::fmt;
use std::str::FromStr;

use fencelock_core::{ClaimId, Mode, Sequencer, Token};

use crate::error::Stale;

/// What a fence remembers of one lock: two marks, and the claim of the top.
///
/// As text: `fm1:<exclusive>:<top>:<claim, 32 hex digits, or ->`.
///
/// ```
/// # use fencelock_fence::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let marks = Marks::default().judge(&holder)?;
/// assert_eq!((marks.exclusive, marks.top), (34, 34));
/// let text = marks.to_string(); // to be stored with the data
/// assert_eq!(text.parse(), Ok(marks));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Marks {
    /// The highest token of any exclusive holder; 0 if there was none.
    pub exclusive: u64,
    /// The highest token of any holder; 0 if there was none.
    pub top: u64,
    /// The claim that has the top.
    pub claim: Option<ClaimId>,
}

impl Marks {
    /// Whether a holder passes. Returns the marks after that.
    ///
    /// # Errors
    /// [`Stale`] if the holder was superseded. Then the marks do not change.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let marks = Marks::default().judge(&holder)?;
    /// let late = "fl1:x:33:ffeeddccbbaa99887766554433221100:ledger".parse()?;
    /// let refusal = marks.judge(&late).unwrap_err();
    /// assert_eq!(refusal.won.get(), 34);
    /// # Ok(())
    /// # }
    /// ```
    pub fn judge(&self, sequencer: &Sequencer) -> Result<Self, Box<Stale>> {
        let (token, claim) = (sequencer.token.get(), Some(sequencer.claim));
        let above = Self {
            exclusive: self.exclusive,
            top: token,
            claim,
        };
        let won = match sequencer.mode {
            Mode::Exclusive => {
                let again = token == self.top && claim == self.claim;
                if token > self.top || again {
                    let exclusive = token;
                    return Ok(Self { exclusive, ..above });
                }
                self.top
            }
            Mode::Shared | Mode::Permit { .. } => {
                if token > self.exclusive {
                    return Ok(if token > self.top { above } else { *self });
                }
                self.exclusive
            }
        };
        Err(Box::new(Stale::new(sequencer.clone(), Token(won))))
    }
}

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fm1:{}:{}:", self.exclusive, self.top)?;
        match self.claim {
            Some(claim) => claim.fmt(f),
            None => f.write_str("-"),
        }
    }
}

impl FromStr for Marks {
    /// What is wrong with the text.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("{text:?} is not the mark of a fence; find out who wrote it, or restore it");
        let rest = match text.split_once(':') {
            Some(("fm1", rest)) => rest,
            Some((version, _)) if version.starts_with("fm") => {
                return Err(format!(
                    "{text:?} has a newer version than fm1; use a newer fencelock"
                ));
            }
            _ => return Err(bad()),
        };
        let mut parts = rest.split(':');
        let mut next = || parts.next().ok_or_else(bad);
        let (exclusive, top, claim) = (next()?, next()?, next()?);
        let number = |digits: &str| digits.parse().map_err(|_| bad());
        let claim = match claim {
            "-" => None,
            claim => Some(claim.parse().map_err(|_| bad())?),
        };
        let (exclusive, top) = (number(exclusive)?, number(top)?);
        if parts.next().is_some() || exclusive > top {
            return Err(bad());
        }
        Ok(Self {
            exclusive,
            top,
            claim,
        })
    }
}
