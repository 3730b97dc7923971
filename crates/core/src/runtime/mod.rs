//! One client's machinery.

pub(crate) mod owners;
