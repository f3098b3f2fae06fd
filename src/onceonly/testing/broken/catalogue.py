"""What is broken, and the promises that must fail on it; others may fail, too.

The rules are in ``rule_catalogue.py``; here are the stores, and both together.
"""

from __future__ import annotations

from onceonly.stores.memory import MemoryStore
from onceonly.stores.rules import Rules
from onceonly.stores.sqlite import SqliteStore
from onceonly.testing.broken import bound, operating, stores, windows
from onceonly.testing.broken.rule_catalogue import BROKEN_RULES, fails

BrokenKind = type[Rules] | type[MemoryStore] | type[SqliteStore]

BROKEN_STORES: tuple[tuple[type[MemoryStore | SqliteStore], frozenset[str]], ...] = (
    (
        stores.ExpiredStillAnswers,
        fails(
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
        fails(
            "fence_grows_across_expiry",
            "fence_grows_across_purge",
            "fence_grows_across_forget",
            "large_batches_are_one_call",
        ),
    ),
    (
        stores.FenceIsConstant,
        fails("fence_grows_across_take_over", "fence_grows_across_release", "fence_grows_across_expiry"),
    ),
    (stores.FenceIsTooLarge, fails("fence_is_positive_and_below_2_53")),
    (stores.PurgeRemovesLiveLeases, fails("purge_keeps_live_lease")),
    (stores.PurgeRemovesQuarantined, fails("quarantined_is_kept_for_good")),
    (
        stores.PurgeRemovesUnfinished,
        fails(
            "claim_outlives_its_lease_by_the_window",
            "renewed_claim_outlives_its_last_lease_by_the_window",
            "free_record_lives_for_the_window",
            "purge_keeps_unfinished_within_window",
        ),
    ),
    (
        stores.PurgeRemovesDone,
        fails("complete_again_is_true_until_lease_would_end", "purge_keeps_done_within_window"),
    ),
    (stores.PurgeLeavesUnfinished, fails("purge_removes_expired_of_every_state", "purge_obeys_its_limit")),
    (stores.StatsMixGroups, fails("stats_count_states_per_group")),
    (stores.ForgetIgnoresLiveClaims, fails("forget_refuses_live_claim")),
    (stores.ForgetStopsHalfWay, fails("forget_refuses_live_claim")),
    (
        stores.ForgetDoesNothing,
        fails(
            "fence_grows_across_forget",
            "forget_removes_any_record_that_is_not_live",
            "forget_of_absent_is_false",
            "forget_by_force_removes_live_claim",
            "forgets_are_answered_in_order",
        ),
    ),
    (
        stores.AnswersInOrderOfKeys,
        fails(
            "mark_of_same_key_twice_is_new_once",
            "claims_are_answered_in_order",
            "completions_are_answered_in_order",
            "marks_are_answered_in_order",
            "peeks_are_answered_in_order",
            "large_batches_of_marks_are_one_call",
            "revokes_are_answered_in_order",
        ),
    ),
    (stores.EmptyBatchHasAnAnswer, fails("empty_batches_have_no_answers")),
    (stores.FullAppliesHalf, fails("full_store_refuses_whole_batch")),
    (stores.FullDropsTheOldest, fails("full_store_refuses_whole_batch")),
    (stores.GroupIsIgnored, fails("groups_are_apart", "neighbouring_parts_do_not_mix")),
    (
        stores.ScopeIsIgnored,
        fails("scopes_are_apart", "neighbouring_parts_do_not_mix", "odd_scopes_are_told_apart"),
    ),
    (stores.PartsAreJoined, fails("neighbouring_parts_do_not_mix")),
    (stores.KeysAreTrimmed, fails("odd_keys_are_told_apart")),
    (stores.PeekShowsNothing, fails("peek_shows_the_record", "peeks_are_answered_in_order")),
    (stores.TokensAreCut, fails("tokens_are_compared_whole")),
    (stores.WritesTouchEverything, fails("mark_leaves_others_alone")),
    (bound.BindTakesAnything, fails("bind_to_wrong_object_is_refused")),
    (
        bound.BindDoesNotBind,
        fails(
            "bound_mark_of_running_raises",
            "bound_mark_rolled_back_leaves_nothing",
            "bound_mark_is_invisible_before_commit",
        ),
    ),
    (bound.BoundMarkOfLiveIsSeen, fails("bound_mark_of_running_raises")),
    (bound.BoundMarkStopsHalfWay, fails("bound_mark_of_running_raises")),
    (
        bound.BoundMarkIsAlwaysNew,
        fails(
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
        fails("bound_mark_of_absent_is_new", "bound_mark_of_expired_is_new", "bound_mark_of_running_raises"),
    ),
    (
        bound.BoundCommits,
        fails(
            "bound_mark_rolled_back_leaves_nothing",
            "bound_mark_is_invisible_before_commit",
            "bound_claim_and_complete_roll_back_together",
            "bound_complete_rolled_back_leaves_the_claim",
        ),
    ),
    (
        bound.BoundCompleteSaysFalse,
        fails("bound_complete_after_take_over_raises", "bound_complete_is_all_or_nothing"),
    ),
    (bound.BoundCompleteStopsHalfWay, fails("bound_complete_is_all_or_nothing")),
    (bound.BoundClaimIgnoresLive, fails("bound_claim_of_running_is_busy")),
    (stores.LastClaimOfABatchWins, fails("claims_of_one_key_go_to_the_first")),
    (stores.ColumnsLoseTheType, fails("marks_given_as_columns_are_marks")),
    (bound.BoundResultIsLost, fails("bound_claim_and_complete_commit_together")),
    (bound.BoundReleaseDoesNothing, fails("bound_release_frees_the_claim")),
    (stores.ColumnsLoseTheResults, fails("marks_given_as_columns_keep_their_results")),
    (stores.ColumnsAreSortedApart, fails("marks_given_as_columns_keep_their_results")),
    (stores.ExpiredResultComesBack, fails("mark_over_expired_keeps_its_result")),
    (
        operating.RevokeForgetsFence,
        fails("revoke_of_lapsed_leaves_an_orphan", "attempts_and_fences_survive_revoke"),
    ),
    (operating.RevokeIgnoresLiveClaims, fails("revoke_refuses_live_claim")),
    (
        operating.RevokeAlwaysTrue,
        fails("revoke_of_absent_is_false", "revoke_of_done_is_false", "revokes_are_answered_in_order"),
    ),
    (operating.RevokeTrustsAnything, fails("revoke_of_what_changed_is_false")),
    (operating.GroupsComeAsTheyWere, fails("groups_are_listed")),
    (operating.RevokeStopsHalfWay, fails("revoke_refuses_live_claim")),
    (
        operating.ForgetTakesEveryState,
        fails("forget_only_leaves_other_states", "forget_only_passes_over_live_claim"),
    ),
    (operating.ForgetMindsOtherStates, fails("forget_only_passes_over_live_claim")),
    (operating.ForgetOnlyIsForce, fails("forget_only_claims_refuses_live_one")),
    (operating.ForgetCountsTwice, fails("forget_of_same_key_twice_is_true_once")),
    (operating.FindShowsHalf, fails("find_shows_records_as_peek_does")),
    (operating.MarksHaveFences, fails("find_leaves_out_what_was_only_marked")),
    (operating.MarkInheritsFence, fails("find_leaves_out_what_was_only_marked")),
    (operating.MarkForgetsClaim, fails("find_shows_claim_that_a_mark_ended")),
    (operating.FindShowsExpired, fails("find_leaves_out_expired")),
    (operating.FindIgnoresStates, fails("find_chooses_states", "find_obeys_its_limit")),
    (operating.FindIgnoresGroup, fails("find_chooses_group")),
    (operating.FindIgnoresOrphaned, fails("find_tells_orphans_from_running_claims")),
    (operating.FindShowsClaimsOnly, fails("find_tells_orphans_from_running_claims")),
    (operating.FindComesNewestFirst, fails("find_comes_oldest_claim_first", "find_obeys_its_limit")),
    (operating.FindComesByKey, fails("find_comes_oldest_claim_first")),
    (operating.FindIgnoresLimit, fails("find_obeys_its_limit")),
    (operating.FindLimitsFirst, fails("find_obeys_its_limit")),
    (operating.FindTouches, fails("find_changes_nothing")),
    (windows.UnsetWindowIsNoDedup, fails("windows_never_set_are_absent", "windows_are_answered_in_order")),
    (windows.WindowsAreWholeSeconds, fails("window_is_told_as_it_was_set")),
    (windows.WindowsLoseTheirGroup, fails("window_is_told_as_it_was_set")),
    (windows.WindowsOfAllGroups, fails("windows_of_groups_are_apart")),
    (windows.ClearIgnoresGroup, fails("windows_of_groups_are_apart")),
    (windows.WindowIgnoresType, fails("windows_of_types_are_apart")),
    (windows.ClearTakesTypes, fails("windows_of_types_are_apart")),
    (windows.NoDedupIsAbsent, fails("no_dedup_is_a_window", "window_set_again_replaces")),
    (windows.NoDedupIsNothing, fails("no_dedup_is_a_window")),
    (windows.FirstWindowStays, fails("window_set_again_replaces")),
    (windows.LongestWindowStays, fails("window_set_again_replaces")),
    (windows.ClearAlwaysTrue, fails("clear_window_is_true_once")),
    (windows.ClearDoesNothing, fails("clear_window_is_true_once")),
    (windows.WindowsInOrderOfSetting, fails("windows_come_in_order")),
    (windows.WholeGroupComesLast, fails("windows_come_in_order")),
    (windows.WindowsInOrderOfGroups, fails("windows_are_answered_in_order")),
    (windows.WindowNamesAreJoined, fails("windows_of_odd_names_are_told_apart")),
    (windows.WindowTypesAreFolded, fails("windows_of_odd_names_are_told_apart")),
    (windows.WindowIsDatedOnce, fails("window_says_when_it_was_set")),
    (windows.WindowHasNoDate, fails("window_says_when_it_was_set")),
    (windows.WindowChangesRecords, fails("window_set_changes_no_record")),
    (windows.PurgeTakesWindows, fails("windows_stay_until_cleared")),
    (windows.WindowsExpire, fails("windows_stay_until_cleared")),
    (bound.BoundMarkForgetsResult, fails("bound_mark_keeps_its_result")),
    (bound.BoundKnowsNoWindows, fails("bound_windows_are_those_of_the_store")),
)

BROKEN: tuple[tuple[BrokenKind, frozenset[str]], ...] = (*BROKEN_RULES, *BROKEN_STORES)
