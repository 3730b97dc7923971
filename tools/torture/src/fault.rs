//! The kinds of faults.

use std::fmt;
use std::str::FromStr;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// SIGSTOP of a server, SIGCONT later.
    Pause,
    /// kill -9 of a server, and a start with its data on disk.
    Restart,
    /// kill -9 of a server, and a start without data.
    RestartEmpty,
    /// kill -9 of the leader, and a start later.
    KillLeader,
    /// A planned change of the leader.
    SwitchOver,
    /// A server is cut off from the other servers; its clients still reach it.
    CutOff,
    /// No client reaches a server. Its connections to other servers stay.
    Unreachable,
    /// A server is cut off from its clients and from the other servers.
    Isolate,
    /// The server's clock jumps forward past every lease, and back later.
    ClockForward,
    /// The server's clock jumps back, and forward later.
    ClockBack,
    /// The administrator ends every connection.
    KillConnections,
    /// The requests of all workers to a server arrive once more, late and over other connections.
    Repeat,
    /// Late requests ask again for a claim that was released, and then renew it again and again.
    Revive,
    /// A step of a move between two stores is made.
    Step,
    /// The same, and the administrator is killed.
    StepKilled,
    /// A store of a move loses its record.
    RecordLost,
    /// The connections of one worker are held for a while; then the bytes arrive.
    Hold,
    /// The connections of one worker lose everything for a while, and are then reset.
    Partition,
    /// The requests of one worker are lost. Answers that are in flight arrive.
    LoseRequests,
    /// The requests of one worker take effect. Their answers are lost.
    LoseAnswers,
    /// The connections of one worker are slow.
    Delay,
    /// The connections of one worker are reset.
    Reset,
    /// SIGSTOP of a worker, possibly past its leases.
    PauseClient,
    /// kill -9 of a worker; another one takes its place.
    KillClient,
    /// In one worker, between the core and the engine: requests and answers are lost or late.
    Calls,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::Pause,
        Self::Restart,
        Self::RestartEmpty,
        Self::KillLeader,
        Self::SwitchOver,
        Self::CutOff,
        Self::Unreachable,
        Self::Isolate,
        Self::ClockForward,
        Self::ClockBack,
        Self::KillConnections,
        Self::Repeat,
        Self::Revive,
        Self::Step,
        Self::StepKilled,
        Self::RecordLost,
        Self::Hold,
        Self::Partition,
        Self::LoseRequests,
        Self::LoseAnswers,
        Self::Delay,
        Self::Reset,
        Self::PauseClient,
        Self::KillClient,
        Self::Calls,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Restart => "restart",
            Self::RestartEmpty => "restart-empty",
            Self::KillLeader => "kill-leader",
            Self::SwitchOver => "switch-over",
            Self::CutOff => "cut-off",
            Self::Unreachable => "unreachable",
            Self::Isolate => "isolate",
            Self::ClockForward => "clock-forward",
            Self::ClockBack => "clock-back",
            Self::KillConnections => "kill-connections",
            Self::Repeat => "repeat",
            Self::Revive => "revive",
            Self::Step => "step",
            Self::StepKilled => "step-killed",
            Self::RecordLost => "record-lost",
            Self::Hold => "hold",
            Self::Partition => "partition",
            Self::LoseRequests => "lose-requests",
            Self::LoseAnswers => "lose-answers",
            Self::Delay => "delay",
            Self::Reset => "reset",
            Self::PauseClient => "pause-client",
            Self::KillClient => "kill-client",
            Self::Calls => "calls",
        }
    }

    /// Its target.
    #[must_use]
    pub const fn whom(self) -> Whom {
        match self {
            Self::Pause
            | Self::Restart
            | Self::RestartEmpty
            | Self::KillLeader
            | Self::SwitchOver
            | Self::CutOff
            | Self::Unreachable
            | Self::Isolate
            | Self::ClockForward
            | Self::ClockBack
            | Self::KillConnections
            | Self::Repeat
            | Self::Revive
            | Self::Step
            | Self::StepKilled
            | Self::RecordLost => Whom::Server,
            Self::Hold
            | Self::Partition
            | Self::LoseRequests
            | Self::LoseAnswers
            | Self::Delay
            | Self::Reset => Whom::Network,
            Self::PauseClient | Self::KillClient | Self::Calls => Whom::Client,
        }
    }
}

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// A server that was started here.
    Server,
    /// The network between a worker and the store.
    Network,
    /// A worker.
    Client,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("{text:?} is no fault; there are {all}")
        })
    }
}
