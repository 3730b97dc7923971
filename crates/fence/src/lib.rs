//! Fences: the check at the resource, which refuses a holder that was superseded.
