//! The faults, and the cases that must find each.

use fencelock::engine::Engine;
use fencelock::{Memory, Order, Promises};

/// The fault of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    Nothing,
    GrantsWhatIsHeld,
    RepeatsTokens,
    CountsTokensDown,
    RestartsTokensPerClient,
    BelievesTwiceAsLong,
    CountsFromTheReply,
    NeverReleases,
    NeverLeavesTheQueue,
    ReleasesAnyHolder,
    ServesTheLastFirst,
    KeepsTheEvicted,
    EvictsAnyToken,
    EvictsWhenItShouldAsk,
    ShowsWhatWas,
    TreatsExclusiveAsShared,
    TreatsSharedAsExclusive,
    ReleasesAllReaders,
    IgnoresTheLockDelay,
    LeavesSomethingPerName,
    MixesUpNames,
    IgnoresRefreshes,
    ForgetsLabels,
    ListsByPattern,
    DowngradesInNameOnly,
    GrantsOnePermitMore,
    AdmitsUnequalPermits,
    ReleasesAllPermits,
    KnowsItsOwnClaimsOnly,
    ShortensByPlacing,
    RedrawsByPlacing,
    ShortensByRenewing,
    NeverShortens,
    RenewsByIdAlone,
    ChangesAnyRecord,
    IgnoresFloors,
    /// No fault: it promises less.
    PromisesLittle,
}

/// Each mutant, and the cases that must fail on it.
pub(crate) const MUTANTS: &[(Mutant, &[&str])] = &[
    (
        Mutant::ChangesAnyRecord,
        &["one_of_many_changes_the_record"],
    ),
    (
        Mutant::IgnoresFloors,
        &[
            "a_token_is_above_the_floor",
            "a_floor_is_for_all_who_come_later",
            "a_floor_is_for_waiters_and_spares_who_holds",
        ],
    ),
    (
        Mutant::GrantsWhatIsHeld,
        &["held_means_held", "tasks_and_clients_exclude_each_other"],
    ),
    (Mutant::RepeatsTokens, &["tokens_increase_over_release"]),
    (
        Mutant::CountsTokensDown,
        &[
            "tokens_increase_over_release",
            "tokens_increase_over_expiry",
        ],
    ),
    (
        Mutant::RestartsTokensPerClient,
        &["tokens_increase_over_release"],
    ),
    (Mutant::BelievesTwiceAsLong, &["the_client_knows_first"]),
    (Mutant::CountsFromTheReply, &["the_client_knows_first"]),
    (Mutant::NeverReleases, &["held_means_held"]),
    (
        Mutant::NeverLeavesTheQueue,
        &["a_wait_dropped_at_any_moment"],
    ),
    (
        Mutant::ReleasesAnyHolder,
        &["a_late_release_spares_the_next"],
    ),
    (Mutant::ServesTheLastFirst, &["waiters_are_served_in_order"]),
    (
        Mutant::KeepsTheEvicted,
        &["eviction_is_fenced_by_the_token"],
    ),
    (Mutant::EvictsAnyToken, &["eviction_is_fenced_by_the_token"]),
    (
        Mutant::EvictsWhenItShouldAsk,
        &["a_holder_is_asked_to_let_go"],
    ),
    (Mutant::ShowsWhatWas, &["check_is_exact"]),
    (
        Mutant::TreatsExclusiveAsShared,
        &["held_means_held", "exclusive_keeps_shared_out"],
    ),
    (Mutant::TreatsSharedAsExclusive, &["shared_beside_shared"]),
    (Mutant::ReleasesAllReaders, &["shared_beside_shared"]),
    (
        Mutant::IgnoresTheLockDelay,
        &[
            "a_lock_delay_follows_a_loss",
            "an_unhealthy_holder_leaves_its_lock_delay",
        ],
    ),
    (
        Mutant::LeavesSomethingPerName,
        &["ten_thousand_names_leave_nothing"],
    ),
    (Mutant::MixesUpNames, &["no_name_holds_another"]),
    (
        Mutant::IgnoresRefreshes,
        &["without_renewal_refresh_prolongs"],
    ),
    (
        Mutant::ForgetsLabels,
        &["a_look_tells_who_holds_and_who_waits"],
    ),
    (Mutant::ListsByPattern, &["a_list_tells_what_is_held"]),
    (
        Mutant::DowngradesInNameOnly,
        &["a_downgrade_lets_readers_in"],
    ),
    (
        Mutant::GrantsOnePermitMore,
        &["permits_are_counted", "permits_are_served_in_order"],
    ),
    (
        Mutant::AdmitsUnequalPermits,
        &["permits_that_name_different_numbers_keep_each_other_out"],
    ),
    (Mutant::ReleasesAllPermits, &["permits_are_counted"]),
    (
        Mutant::KnowsItsOwnClaimsOnly,
        &["another_client_goes_on_with_a_claim"],
    ),
    (
        Mutant::ShortensByPlacing,
        &["a_late_place_does_not_shorten"],
    ),
    (Mutant::RedrawsByPlacing, &["a_late_place_does_not_shorten"]),
    (
        Mutant::ShortensByRenewing,
        &["a_late_renewal_does_not_shorten"],
    ),
    (Mutant::NeverShortens, &["a_refresh_may_shorten"]),
    (
        Mutant::RenewsByIdAlone,
        &["a_renewal_with_an_old_token_is_lost"],
    ),
];

/// What an engine with this fault promises.
pub(crate) fn promises(mutant: Mutant) -> Promises {
    let all = Memory::new().promises().clone();
    match mutant {
        Mutant::PromisesLittle => all
            .order(Order::Unordered)
            .shared(false)
            .permits(false)
            .lock_delay(false)
            .ranges(false),
        _ => all,
    }
}
