//! Time by clocks that cannot be set: the boot clock of this machine, which all its clients share, and the processor time
//! that a server has used.

use std::time::Duration;

use fencelock_core::Clock;

/// This machine until its next start, with its boot clock.
#[derive(Debug)]
pub(crate) struct Machine(String);

impl Machine {
    /// In a time namespace the boot clock shows another time, so that counts as another machine.
    pub(crate) fn this() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let namespace = std::fs::read_link("/proc/self/ns/time");
        let namespace = namespace.map_or_else(|_| String::new(), |link| link.display().to_string());
        let id = match boot {
            Ok(boot) => boot + &namespace,
            // Then no other client counts as one of the same machine.
            Err(_) => format!("{:032x}", fastrand::u128(..)),
        };
        Self(id.chars().filter(char::is_ascii_hexdigit).collect())
    }

    /// Hexadecimal digits.
    pub(crate) fn id(&self) -> &str {
        &self.0
    }

    /// The boot clock, in ms.
    pub(crate) fn now() -> i64 {
        i64::try_from(Clock::Boot.now().as_nanos() / 1_000_000).unwrap_or(i64::MAX)
    }
}

/// The least time that a server has run: the processor time that its main thread has used, from `INFO`. Unlike the reported
/// uptime it does not depend on the server's clock.
pub(crate) fn ran(field: impl Fn(&str) -> Option<f64>) -> Duration {
    let used = ["used_cpu_sys_main_thread", "used_cpu_user_main_thread"];
    let seconds = used.into_iter().map(|name| field(name).unwrap_or(0.0));
    Duration::try_from_secs_f64(seconds.sum()).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_named_by_its_boot() {
        let (one, two) = (Machine::this(), Machine::this());
        assert_eq!(one.id(), two.id());
        assert!(one.id().len() >= 32 && one.id().chars().all(|c| c.is_ascii_hexdigit()));
    }

    #[test]
    fn used_processor_time_is_run_time() {
        let told = |name: &str| (name != "used_cpu_sys_main_thread").then_some(1.5);
        assert_eq!(ran(told), Duration::from_millis(1500));
        assert_eq!(ran(|_| None), Duration::ZERO);
        assert_eq!(ran(|_| Some(-3.0)), Duration::ZERO);
    }
}
