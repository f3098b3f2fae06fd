"""Which rules are broken, and the promises that must fail on a store that has them."""

from __future__ import annotations

from onceonly.stores.rules import Rules
from onceonly.testing.broken import claim_rules, operating, rules


def fails(*promises: str) -> frozenset[str]:
    return frozenset(promises)


BROKEN_RULES: tuple[tuple[type[Rules], frozenset[str]], ...] = (
    (
        rules.NoTokenCheckOnComplete,
        fails(
            "complete_of_running_by_other_is_false",
            "complete_of_lapsed_by_other_is_false",
            "complete_after_take_over_is_false",
            "tokens_are_compared_whole",
            "completions_are_answered_in_order",
        ),
    ),
    (
        rules.NoTokenCheckOnRelease,
        fails(
            "release_of_running_by_other_is_false",
            "release_of_lapsed_by_other_is_false",
            "release_after_take_over_is_false",
            "release_of_free_by_other_is_false",
            "releases_are_answered_in_order",
        ),
    ),
    (
        rules.NoTokenCheckOnRenew,
        fails(
            "renew_of_running_by_other_is_false",
            "renew_of_lapsed_by_other_is_false",
            "renew_after_take_over_is_false",
            "renewals_are_answered_in_order",
        ),
    ),
    (
        rules.TakesOverRunningLease,
        fails(
            "claim_of_running_by_other_is_busy",
            "claim_is_not_taken_before_lease_is_over",
            "busy_says_when_lease_ends",
        ),
    ),
    (
        rules.TakesOverALittleEarly,
        fails("claim_is_not_taken_before_lease_is_over", "renew_of_running_by_owner_is_true"),
    ),
    (
        rules.LeaseNeverEnds,
        fails(
            "claim_of_lapsed_by_other_is_take_over",
            "fence_grows_across_take_over",
            "attempts_survive_take_over",
        ),
    ),
    (
        rules.ReleaseForgetsAttempts,
        fails(
            "claim_of_free_is_next_attempt", "claim_of_free_waits_for_not_before", "attempts_survive_release"
        ),
    ),
    (
        rules.ReleaseDeletesTheRecord,
        fails(
            "claim_of_free_is_next_attempt",
            "claim_of_free_waits_for_not_before",
            "attempts_survive_release",
            "release_of_running_by_owner_is_true",
        ),
    ),
    (rules.ReleaseCountsUnstarted, fails("unstarted_attempt_does_not_count")),
    (rules.ReleaseCountsTwice, fails("release_again_is_true")),
    (
        rules.ReleaseIgnoresDelay,
        fails(
            "claim_of_free_waits_for_not_before",
            "fingerprint_is_told_on_busy",
            "free_record_outlives_its_delay_by_the_window",
        ),
    ),
    (
        rules.ReleaseKeepsShort,
        fails("free_record_lives_for_the_window", "free_record_outlives_its_delay_by_the_window"),
    ),
    (
        rules.ReleaseAlwaysTrue,
        fails(
            "release_of_absent_is_false",
            "release_of_expired_is_false",
            "release_of_running_by_other_is_false",
        ),
    ),
    (rules.ReleaseOnlyWithinLease, fails("release_of_lapsed_by_owner_is_true")),
    (rules.ReleaseOnlyOnce, fails("release_again_is_true")),
    (
        rules.DoneCanBeReleased,
        fails(
            "release_of_done_by_owner_is_false",
            "release_of_done_by_other_is_false",
            "release_of_quarantined_is_false",
        ),
    ),
    (
        rules.RenewAlwaysTrue,
        fails(
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
        fails(
            "claim_of_lapsed_by_owner_is_same_claim",
            "renew_of_running_by_owner_is_true",
            "renew_of_lapsed_by_owner_is_true",
            "renewed_claim_outlives_its_last_lease_by_the_window",
        ),
    ),
    (rules.RenewKeepsExpiry, fails("renewed_claim_outlives_its_last_lease_by_the_window")),
    (
        rules.CompleteAlwaysTrue,
        fails(
            "complete_of_absent_is_false",
            "complete_of_expired_is_false",
            "complete_of_running_by_other_is_false",
        ),
    ),
    (
        rules.CompleteOnlyOnce,
        fails(
            "complete_again_is_true",
            "complete_again_is_true_until_lease_would_end",
            "complete_of_quarantined_again_is_true",
        ),
    ),
    (
        rules.CompleteOfDoneSaysTrue,
        fails(
            "complete_of_done_by_other_is_false",
            "complete_of_marked_is_false",
            "complete_of_quarantined_by_other_is_false",
        ),
    ),
    (rules.CompleteOfFree, fails("complete_of_free_is_false")),
    (rules.CompleteOnlyWithinLease, fails("complete_of_lapsed_by_owner_is_true")),
    (rules.CompleteOverwritesResult, fails("complete_again_is_true")),
    (rules.FalsyResultIsNone, fails("falsy_results_are_kept")),
    (
        rules.FailedIsProcessed,
        fails(
            "claim_of_failed_is_done",
            "complete_of_running_by_owner_is_true",
            "stats_count_states_per_group",
            "peek_shows_the_record",
        ),
    ),
    (rules.QuarantineEnds, fails("quarantined_is_kept_for_good")),
    (
        rules.WindowCountsFromClaim,
        fails(
            "window_counts_from_completion",
            "window_of_completion_counts",
            "renewed_claim_outlives_its_last_lease_by_the_window",
        ),
    ),
    (
        rules.WindowTooShort,
        fails(
            "done_is_remembered_for_the_window",
            "mark_is_remembered_for_the_window",
            "window_counts_from_completion",
        ),
    ),
    (
        rules.WindowTooLong,
        fails("claim_of_expired_is_acquired_as_new", "fence_grows_across_expiry", "fence_grows_across_purge"),
    ),
    (
        claim_rules.ResultIsText,
        fails("claim_of_marked_is_done", "binary_results_are_kept", "bare_record_has_no_result"),
    ),
    (
        claim_rules.QuarantineCanBeTaken,
        fails("claim_of_quarantined_is_done", "mark_of_quarantined_is_seen", "quarantined_is_kept_for_good"),
    ),
    (
        claim_rules.MarkIsAlwaysNew,
        fails(
            "mark_of_absent_is_new",
            "mark_of_expired_is_new",
            "mark_of_running_is_seen",
            "mark_of_done_is_seen",
            "mark_of_failed_is_seen",
        ),
    ),
    (claim_rules.MarkOverLiveClaim, fails("mark_of_running_is_seen")),
    (
        claim_rules.MarkSeesUnfinished,
        fails("complete_of_marked_is_false", "mark_of_lapsed_is_new", "mark_of_free_is_new"),
    ),
    (
        claim_rules.MarkIsNeverNew,
        fails("claim_of_marked_is_done", "complete_of_marked_is_false", "mark_of_absent_is_new"),
    ),
    (claim_rules.MarkForgetsType, fails("mark_keeps_its_type")),
    (claim_rules.MarkKeepsToken, fails("complete_of_marked_is_false")),
    (
        claim_rules.ResentClaimMintsAnother,
        fails(
            "claim_again_by_owner_is_same_lease",
            "claim_of_lapsed_by_owner_is_same_claim",
            "orphaned_is_said_again",
        ),
    ),
    (
        claim_rules.ResentClaimIsBusy,
        fails("claim_again_by_owner_is_same_lease", "orphaned_is_said_again", "first_fingerprint_wins"),
    ),
    (
        claim_rules.TakeOverResetsAttempts,
        fails(
            "claim_of_lapsed_by_other_is_take_over",
            "attempts_survive_take_over",
            "claim_outlives_its_lease_by_the_window",
            "renewed_claim_outlives_its_last_lease_by_the_window",
        ),
    ),
    (
        claim_rules.OrphansAreNotTold,
        fails("claim_of_lapsed_by_other_is_take_over", "claim_outlives_its_lease_by_the_window"),
    ),
    (claim_rules.OrphanIsToldOnce, fails("orphaned_is_said_again")),
    (
        claim_rules.EveryoneIsOrphaned,
        fails(
            "claim_of_absent_is_acquired",
            "claim_of_expired_is_acquired_as_new",
            "claim_of_free_is_next_attempt",
            "release_of_lapsed_by_owner_is_true",
        ),
    ),
    (
        claim_rules.ClaimExpiresWithItsLease,
        fails(
            "claim_of_lapsed_by_owner_is_same_claim",
            "claim_of_lapsed_by_other_is_take_over",
            "attempts_survive_take_over",
        ),
    ),
    (
        claim_rules.RetryAfterIsADeadline,
        fails("busy_says_when_lease_ends", "claim_of_free_waits_for_not_before"),
    ),
    (claim_rules.FingerprintLostOnBusy, fails("fingerprint_is_told_on_busy")),
    (claim_rules.FingerprintLostOnDone, fails("fingerprint_is_told_on_done")),
    (
        claim_rules.LastFingerprintWins,
        fails("fingerprint_is_told_on_busy", "fingerprint_is_told_on_done", "first_fingerprint_wins"),
    ),
    (claim_rules.FingerprintOfNothing, fails("fingerprint_is_told_on_acquired")),
    (claim_rules.DoneForgetsAttempt, fails("done_keeps_its_attempt")),
    (
        claim_rules.DoneRunsAgain,
        fails("claim_of_done_by_owner_is_done", "claim_of_done_by_other_is_done", "claim_of_marked_is_done"),
    ),
    (rules.UnstartedReleaseSettlesTheOrphan, fails("release_unstarted_leaves_an_orphan_one")),
    (rules.OrphanForEver, fails("release_unstarted_leaves_an_orphan_one")),
    (
        claim_rules.MarkForgetsResult,
        fails(
            "mark_keeps_its_result",
            "results_of_marks_are_kept_as_they_are",
            "mark_over_unfinished_keeps_its_result",
            "mark_over_expired_keeps_its_result",
            "marks_given_as_columns_keep_their_results",
        ),
    ),
    (
        claim_rules.EmptyMarkResultIsNone,
        fails("results_of_marks_are_kept_as_they_are", "mark_over_expired_keeps_its_result"),
    ),
    (claim_rules.LastMarkResultWins, fails("result_of_first_mark_stays", "mark_of_done_is_seen")),
    (claim_rules.FirstMarkResultFillsIn, fails("result_of_first_mark_stays")),
    (claim_rules.MarkOverUnfinishedForgetsResult, fails("mark_over_unfinished_keeps_its_result")),
    (
        operating.RevokeKeepsToken,
        fails(
            "revoke_of_lapsed_refuses_its_owner",
            "revoke_of_lapsed_leaves_an_orphan",
            "revoke_of_free_refuses_its_last_owner",
            "revoke_by_force_ends_live_claim",
        ),
    ),
    (operating.RevokeKeepsDeadline, fails("revoke_of_free_ends_its_wait", "revoke_by_force_ends_live_claim")),
    (
        operating.RevokeForgetsAttempts,
        fails(
            "revoke_of_lapsed_leaves_an_orphan",
            "revoke_of_free_ends_its_wait",
            "attempts_and_fences_survive_revoke",
            "revoked_record_lives_for_the_window",
        ),
    ),
    (
        operating.RevokeReleases,
        fails(
            "revoke_of_lapsed_refuses_its_owner",
            "revoke_of_lapsed_leaves_an_orphan",
            "revoke_by_force_ends_live_claim",
        ),
    ),
    (operating.RevokeMakesOrphans, fails("revoke_of_free_ends_its_wait")),
    (operating.RevokeSettlesTheOrphan, fails("revoke_of_free_leaves_an_orphan_one")),
    (operating.RevokeReopensDone, fails("revoke_of_done_is_false")),
    (operating.RevokeForgetsWhoDidIt, fails("revoke_of_done_is_false")),
    (operating.RestartKeepsAttempts, fails("revoke_afresh_lets_it_run_as_the_first")),
    (operating.RestartKeepsToken, fails("revoke_afresh_by_force_ends_live_claim")),
    (operating.RestartLeavesAnOrphan, fails("revoke_afresh_lets_it_run_as_the_first")),
    (operating.RestartForgetsTheFingerprint, fails("revoke_afresh_keeps_the_fingerprint")),
    (operating.RestartTakesProcessed, fails("revoke_afresh_of_processed_is_false")),
    (operating.RestartExpires, fails("revoke_afresh_of_quarantined_is_kept_for_good")),
    (
        operating.RestartOnlyWaits,
        fails("revoke_afresh_lets_it_run_as_the_first", "revoke_afresh_by_force_ends_live_claim"),
    ),
    (operating.RevokeKeepsShort, fails("revoked_record_lives_for_the_window")),
)
