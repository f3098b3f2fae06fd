"""What is broken, and the promises that must fail on it; others may fail, too."""

from __future__ import annotations

from onceonly.stores.memory import MemoryStore
from onceonly.stores.rules import Rules
from onceonly.stores.sqlite import SqliteStore
from onceonly.testing.broken import bound, claim_rules, rules, stores

BrokenKind = type[Rules] | type[MemoryStore] | type[SqliteStore]


def _fails(*promises: str) -> frozenset[str]:
    return frozenset(promises)


BROKEN: tuple[tuple[BrokenKind, frozenset[str]], ...] = (
    (
        rules.NoTokenCheckOnComplete,
        _fails(
            "complete_of_running_by_other_is_false",
            "complete_of_lapsed_by_other_is_false",
            "complete_after_take_over_is_false",
            "tokens_are_compared_whole",
            "completions_are_answered_in_order",
        ),
    ),
    (
        rules.NoTokenCheckOnRelease,
        _fails(
            "release_of_running_by_other_is_false",
            "release_of_lapsed_by_other_is_false",
            "release_after_take_over_is_false",
            "release_of_free_by_other_is_false",
            "releases_are_answered_in_order",
        ),
    ),
    (
        rules.NoTokenCheckOnRenew,
        _fails(
            "renew_of_running_by_other_is_false",
            "renew_of_lapsed_by_other_is_false",
            "renew_after_take_over_is_false",
            "renewals_are_answered_in_order",
        ),
    ),
    (
        rules.TakesOverRunningLease,
        _fails(
            "claim_of_running_by_other_is_busy",
            "claim_is_not_taken_before_lease_is_over",
            "busy_says_when_lease_ends",
        ),
    ),
    (
        rules.TakesOverALittleEarly,
        _fails("claim_is_not_taken_before_lease_is_over", "renew_of_running_by_owner_is_true"),
    ),
    (
        rules.LeaseNeverEnds,
        _fails(
            "claim_of_lapsed_by_other_is_take_over",
            "fence_grows_across_take_over",
            "attempts_survive_take_over",
        ),
    ),
    (
        rules.ReleaseForgetsAttempts,
        _fails(
            "claim_of_free_is_next_attempt", "claim_of_free_waits_for_not_before", "attempts_survive_release"
        ),
    ),
    (
        rules.ReleaseDeletesTheRecord,
        _fails(
            "claim_of_free_is_next_attempt",
            "claim_of_free_waits_for_not_before",
            "attempts_survive_release",
            "release_of_running_by_owner_is_true",
        ),
    ),
    (rules.ReleaseCountsUnstarted, _fails("unstarted_attempt_does_not_count")),
    (rules.ReleaseCountsTwice, _fails("release_again_is_true")),
    (
        rules.ReleaseIgnoresDelay,
        _fails(
            "claim_of_free_waits_for_not_before",
            "fingerprint_is_told_on_busy",
            "free_record_outlives_its_delay_by_the_window",
        ),
    ),
    (
        rules.ReleaseKeepsShort,
        _fails("free_record_lives_for_the_window", "free_record_outlives_its_delay_by_the_window"),
    ),
    (
        rules.ReleaseAlwaysTrue,
        _fails(
            "release_of_absent_is_false",
            "release_of_expired_is_false",
            "release_of_running_by_other_is_false",
        ),
    ),
    (rules.ReleaseOnlyWithinLease, _fails("release_of_lapsed_by_owner_is_true")),
    (rules.ReleaseOnlyOnce, _fails("release_again_is_true")),
    (
        rules.DoneCanBeReleased,
        _fails(
            "release_of_done_by_owner_is_false",
            "release_of_done_by_other_is_false",
            "release_of_quarantined_is_false",
        ),
    ),
    (
        rules.RenewAlwaysTrue,
        _fails(
            "renew_of_absent_is_false",
            "renew_of_expired_is_false",
            "renew_of_running_by_other_is_false",
            "renew_of_free_is_false",
            "renew_of_done_by_owner_is_false",
            "renew_of_done_by_other_is_false",
            "renew_of_quarantined_is_false",
        ),
    ),
    (
        rules.RenewDoesNothing,
        _fails(
            "claim_of_lapsed_by_owner_is_same_claim",
            "renew_of_running_by_owner_is_true",
            "renew_of_lapsed_by_owner_is_true",
            "renewed_claim_outlives_its_last_lease_by_the_window",
        ),
    ),
    (rules.RenewKeepsExpiry, _fails("renewed_claim_outlives_its_last_lease_by_the_window")),
    (
        rules.CompleteAlwaysTrue,
        _fails(
            "complete_of_absent_is_false",
            "complete_of_expired_is_false",
            "complete_of_running_by_other_is_false",
        ),
    ),
    (
        rules.CompleteOnlyOnce,
        _fails(
            "complete_again_is_true",
            "complete_again_is_true_until_lease_would_end",
            "complete_of_quarantined_again_is_true",
        ),
    ),
    (
        rules.CompleteOfDoneSaysTrue,
        _fails(
            "complete_of_done_by_other_is_false",
            "complete_of_marked_is_false",
            "complete_of_quarantined_by_other_is_false",
        ),
    ),
    (rules.CompleteOfFree, _fails("complete_of_free_is_false")),
    (rules.CompleteOnlyWithinLease, _fails("complete_of_lapsed_by_owner_is_true")),
    (rules.CompleteOverwritesResult, _fails("complete_again_is_true")),
    (rules.FalsyResultIsNone, _fails("falsy_results_are_kept")),
    (
        rules.FailedIsProcessed,
        _fails(
            "claim_of_failed_is_done",
            "complete_of_running_by_owner_is_true",
            "stats_count_states_per_group",
            "peek_shows_the_record",
        ),
    ),
    (rules.QuarantineEnds, _fails("quarantined_is_kept_for_good")),
    (
        rules.WindowCountsFromClaim,
        _fails(
            "window_counts_from_completion",
            "window_of_completion_counts",
            "renewed_claim_outlives_its_last_lease_by_the_window",
        ),
    ),
    (
        rules.WindowTooShort,
        _fails(
            "done_is_remembered_for_the_window",
            "mark_is_remembered_for_the_window",
            "window_counts_from_completion",
        ),
    ),
    (
        rules.WindowTooLong,
        _fails(
            "claim_of_expired_is_acquired_as_new", "fence_grows_across_expiry", "fence_grows_across_purge"
        ),
    ),
    (
        claim_rules.ResultIsText,
        _fails("claim_of_marked_is_done", "binary_results_are_kept", "bare_record_has_no_result"),
    ),
    (
        claim_rules.QuarantineCanBeTaken,
        _fails("claim_of_quarantined_is_done", "mark_of_quarantined_is_seen", "quarantined_is_kept_for_good"),
    ),
    (
        claim_rules.MarkIsAlwaysNew,
        _fails(
            "mark_of_absent_is_new",
            "mark_of_expired_is_new",
            "mark_of_running_is_seen",
            "mark_of_done_is_seen",
            "mark_of_failed_is_seen",
        ),
    ),
    (claim_rules.MarkOverLiveClaim, _fails("mark_of_running_is_seen")),
    (
        claim_rules.MarkSeesUnfinished,
        _fails("complete_of_marked_is_false", "mark_of_lapsed_is_new", "mark_of_free_is_new"),
    ),
    (
        claim_rules.MarkIsNeverNew,
        _fails("claim_of_marked_is_done", "complete_of_marked_is_false", "mark_of_absent_is_new"),
    ),
    (claim_rules.MarkForgetsType, _fails("mark_keeps_its_type")),
    (claim_rules.MarkKeepsToken, _fails("complete_of_marked_is_false")),
    (
        claim_rules.ResentClaimMintsAnother,
        _fails(
            "claim_again_by_owner_is_same_lease",
            "claim_of_lapsed_by_owner_is_same_claim",
            "orphaned_is_said_again",
        ),
    ),
    (
        claim_rules.ResentClaimIsBusy,
        _fails("claim_again_by_owner_is_same_lease", "orphaned_is_said_again", "first_fingerprint_wins"),
    ),
    (
        claim_rules.TakeOverResetsAttempts,
        _fails(
            "claim_of_lapsed_by_other_is_take_over",
            "attempts_survive_take_over",
            "claim_outlives_its_lease_by_the_window",
            "renewed_claim_outlives_its_last_lease_by_the_window",
        ),
    ),
    (
        claim_rules.OrphansAreNotTold,
        _fails("claim_of_lapsed_by_other_is_take_over", "claim_outlives_its_lease_by_the_window"),
    ),
    (claim_rules.OrphanIsToldOnce, _fails("orphaned_is_said_again")),
    (
        claim_rules.EveryoneIsOrphaned,
        _fails(
            "claim_of_absent_is_acquired",
            "claim_of_expired_is_acquired_as_new",
            "claim_of_free_is_next_attempt",
            "release_of_lapsed_by_owner_is_true",
        ),
    ),
    (
        claim_rules.ClaimExpiresWithItsLease,
        _fails(
            "claim_of_lapsed_by_owner_is_same_claim",
            "claim_of_lapsed_by_other_is_take_over",
            "attempts_survive_take_over",
        ),
    ),
    (
        claim_rules.RetryAfterIsADeadline,
        _fails("busy_says_when_lease_ends", "claim_of_free_waits_for_not_before"),
    ),
    (claim_rules.FingerprintLostOnBusy, _fails("fingerprint_is_told_on_busy")),
    (claim_rules.FingerprintLostOnDone, _fails("fingerprint_is_told_on_done")),
    (
        claim_rules.LastFingerprintWins,
        _fails("fingerprint_is_told_on_busy", "fingerprint_is_told_on_done", "first_fingerprint_wins"),
    ),
    (claim_rules.FingerprintOfNothing, _fails("fingerprint_is_told_on_acquired")),
    (claim_rules.DoneForgetsAttempt, _fails("done_keeps_its_attempt")),
    (
        claim_rules.DoneRunsAgain,
        _fails("claim_of_done_by_owner_is_done", "claim_of_done_by_other_is_done", "claim_of_marked_is_done"),
    ),
    (
        stores.ExpiredStillAnswers,
        _fails(
            "claim_of_expired_is_acquired_as_new",
            "fence_grows_across_expiry",
            "complete_of_expired_is_false",
            "mark_of_expired_is_new",
            "done_is_forgotten_an_eighth_after_the_window",
            "mark_is_forgotten_an_eighth_after_the_window",
            "purge_changes_no_answer",
        ),
    ),
    (
        stores.FenceRestarts,
        _fails(
            "fence_grows_across_expiry",
            "fence_grows_across_purge",
            "fence_grows_across_forget",
            "large_batches_are_one_call",
        ),
    ),
    (
        stores.FenceIsConstant,
        _fails("fence_grows_across_take_over", "fence_grows_across_release", "fence_grows_across_expiry"),
    ),
    (stores.FenceIsTooLarge, _fails("fence_is_positive_and_below_2_53")),
    (stores.PurgeRemovesLiveLeases, _fails("purge_keeps_live_lease")),
    (stores.PurgeRemovesQuarantined, _fails("quarantined_is_kept_for_good")),
    (
        stores.PurgeRemovesUnfinished,
        _fails(
            "claim_outlives_its_lease_by_the_window",
            "renewed_claim_outlives_its_last_lease_by_the_window",
            "free_record_lives_for_the_window",
            "purge_keeps_unfinished_within_window",
        ),
    ),
    (
        stores.PurgeRemovesDone,
        _fails("complete_again_is_true_until_lease_would_end", "purge_keeps_done_within_window"),
    ),
    (stores.PurgeLeavesUnfinished, _fails("purge_removes_expired_of_every_state", "purge_obeys_its_limit")),
    (stores.StatsMixGroups, _fails("stats_count_states_per_group")),
    (stores.ForgetIgnoresLiveClaims, _fails("forget_refuses_live_claim")),
    (stores.ForgetStopsHalfWay, _fails("forget_refuses_live_claim")),
    (
        stores.ForgetDoesNothing,
        _fails(
            "fence_grows_across_forget",
            "forget_removes_any_record_that_is_not_live",
            "forget_of_absent_is_false",
            "forget_by_force_removes_live_claim",
            "forgets_are_answered_in_order",
        ),
    ),
    (
        stores.AnswersInOrderOfKeys,
        _fails(
            "mark_of_same_key_twice_is_new_once",
            "claims_are_answered_in_order",
            "completions_are_answered_in_order",
            "marks_are_answered_in_order",
            "peeks_are_answered_in_order",
            "large_batches_of_marks_are_one_call",
        ),
    ),
    (stores.EmptyBatchHasAnAnswer, _fails("empty_batches_have_no_answers")),
    (stores.FullAppliesHalf, _fails("full_store_refuses_whole_batch")),
    (stores.FullDropsTheOldest, _fails("full_store_refuses_whole_batch")),
    (stores.GroupIsIgnored, _fails("groups_are_apart", "neighbouring_parts_do_not_mix")),
    (
        stores.ScopeIsIgnored,
        _fails("scopes_are_apart", "neighbouring_parts_do_not_mix", "odd_scopes_are_told_apart"),
    ),
    (stores.PartsAreJoined, _fails("neighbouring_parts_do_not_mix")),
    (stores.KeysAreTrimmed, _fails("odd_keys_are_told_apart")),
    (stores.PeekShowsNothing, _fails("peek_shows_the_record", "peeks_are_answered_in_order")),
    (stores.TokensAreCut, _fails("tokens_are_compared_whole")),
    (stores.WritesTouchEverything, _fails("mark_leaves_others_alone")),
    (bound.BindTakesAnything, _fails("bind_to_wrong_object_is_refused")),
    (
        bound.BindDoesNotBind,
        _fails(
            "bound_mark_of_running_raises",
            "bound_mark_rolled_back_leaves_nothing",
            "bound_mark_is_invisible_before_commit",
        ),
    ),
    (bound.BoundMarkOfLiveIsSeen, _fails("bound_mark_of_running_raises")),
    (bound.BoundMarkStopsHalfWay, _fails("bound_mark_of_running_raises")),
    (
        bound.BoundMarkIsAlwaysNew,
        _fails(
            "bound_mark_of_absent_is_new",
            "bound_mark_of_expired_is_new",
            "bound_mark_of_lapsed_is_new",
            "bound_mark_of_free_is_new",
            "bound_mark_of_done_is_seen",
            "bound_mark_of_marked_is_seen",
            "bound_mark_of_quarantined_is_seen",
            "bound_mark_is_seen_in_same_transaction",
        ),
    ),
    (
        bound.BoundMarkIsNeverNew,
        _fails("bound_mark_of_absent_is_new", "bound_mark_of_expired_is_new", "bound_mark_of_running_raises"),
    ),
    (
        bound.BoundCommits,
        _fails(
            "bound_mark_rolled_back_leaves_nothing",
            "bound_mark_is_invisible_before_commit",
            "bound_claim_and_complete_roll_back_together",
            "bound_complete_rolled_back_leaves_the_claim",
        ),
    ),
    (
        bound.BoundCompleteSaysFalse,
        _fails("bound_complete_after_take_over_raises", "bound_complete_is_all_or_nothing"),
    ),
    (bound.BoundCompleteStopsHalfWay, _fails("bound_complete_is_all_or_nothing")),
    (bound.BoundClaimIgnoresLive, _fails("bound_claim_of_running_is_busy")),
    (rules.UnstartedReleaseSettlesTheOrphan, _fails("release_unstarted_leaves_an_orphan_one")),
    (rules.OrphanForEver, _fails("release_unstarted_leaves_an_orphan_one")),
    (stores.LastClaimOfABatchWins, _fails("claims_of_one_key_go_to_the_first")),
    (stores.ColumnsLoseTheType, _fails("marks_given_as_columns_are_marks")),
    (bound.BoundResultIsLost, _fails("bound_claim_and_complete_commit_together")),
    (bound.BoundReleaseDoesNothing, _fails("bound_release_frees_the_claim")),
)
