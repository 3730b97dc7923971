//! The thin clients of the lock service in TypeScript and Python, as they are published: built, and installed from the
//! packages (tools/interop/setup.sh does both). They run in processes of their own, with real replicas on a real
//! server.

#![allow(clippy::expect_used)]

mod dashboard;
mod described;
mod detached;
mod exclusion;
mod faults;
mod front;
mod pages;
mod process;
mod program;
mod prometheus;
mod refusals;
mod service;
mod stores;
mod torture;
mod waiting;

/// The tests, for each client.
macro_rules! for_each_client {
    ($($test:ident),* $(,)?) => {
        crate::for_each_client!(@ typescript TypeScript; $($test),*);
        crate::for_each_client!(@ asyncio Asyncio; $($test),*);
        crate::for_each_client!(@ threads Threads; $($test),*);
    };
    (@ $module:ident $language:ident; $($test:ident),*) => {
        mod $module {
            use crate::program::Language;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(Language::$language).await;
                }
            )*
        }
    };
}
pub(crate) use for_each_client;
