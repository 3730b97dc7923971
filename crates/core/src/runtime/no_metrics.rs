//! Replaces `metrics.rs` without the feature `metrics`: it reports nothing, and compiles to nothing.

use std::borrow::Cow;
use std::time::Duration;

use crate::engine::StoreChange;
use crate::types::{LossReason, Mode};

#[derive(Debug)]
pub(crate) struct Metrics;

impl Metrics {
    pub(crate) fn new(_: &'static str) -> Self {
        Self
    }

    pub(crate) fn store_changed(&self, _: &str, _: StoreChange) {}

    pub(crate) fn series(&self, _: Mode, _: Option<Cow<'static, str>>) -> Series {
        Series::default()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Series(());

impl Series {
    pub(crate) fn waits(&self) {}

    pub(crate) fn waits_no_more(&self, _: Option<&'static str>) {}

    pub(crate) fn granted(&self, _: Option<Duration>, _: bool) {}

    pub(crate) fn holds(&self) {}

    pub(crate) fn holds_no_more(&self) {}

    pub(crate) fn lost(&self, _: LossReason) {}

    pub(crate) fn renewed(&self, _: &'static str) {}
}
