"""Planted bugs in `tokens`: comparisons and decisions."""

from __future__ import annotations

from typing import Final

from consumers.owner import tables
from lab.simulation.planted.planting import Replace, Return, always, catalog, leave_out, never, replicas, rows
from tokens import comparison, decision, event, integers, logs, mysql
from tokens.logs import FilePosition, PostgresPosition
from tokens.mariadb import MariadbPosition
from tokens.mysql import MysqlPosition
from tokens.session import packed, texts
from tokens.vector import Vector
from tokens.writeid_kinds import CompactorWriteIdList
from tokens.writeids import ValidWriteIdList, hive_compare

REACHED_BY_MARK: Final = "by_mark is Order.NEWER or by_mark is Order.SAME"
REACHED_BY_VALUE: Final = "by_value is Order.NEWER or by_value is Order.SAME"
OTHER_TABLE_ID: Final = "any_demand.table_id and any_demand.table_id != any_tag.table_id"

DECISIONS: Final = (
    rows(
        "epochs_not_compared",
        "a session's position of a lost history is compared with the new one's",
        never(decision._judge_component, "any_epoch < any_current"),
    ),
    rows(
        "later_epoch_ignored",
        "a demand of a later epoch is compared with the old one's positions",
        never(decision._judge_component, "any_epoch > any_current"),
    ),
    rows(
        "stale_is_fresh",
        "a position that is older than the demand is taken for fresh",
        Replace(decision._judge_component, REACHED_BY_MARK, "by_mark is not Order.UNKNOWN"),
    ),
    rows(
        "unknown_is_fresh",
        "positions that cannot be compared are taken for fresh",
        Replace(decision._judge_component, REACHED_BY_VALUE, "by_value is not Order.OLDER"),
    ),
    rows(
        "watermark_ignored",
        "only the entry's own position can prove a demand",
        never(decision._judge_component, REACHED_BY_MARK),
    ),
    rows(
        "value_at_the_demand_is_stale",
        "a value at exactly the demanded position is not fresh",
        Replace(decision._judge_component, REACHED_BY_VALUE, "by_value is Order.NEWER"),
    ),
    rows(
        "watermark_at_the_demand_is_stale",
        "a watermark at exactly the demanded position is not enough",
        Replace(decision._judge_component, REACHED_BY_MARK, "by_mark is Order.NEWER"),
    ),
    rows(
        "unknown_shard_is_no_demand",
        "a token's component of a shard that nobody knows is passed over",
        Return(decision.is_unknown, "False"),
    ),
    rows(
        "fresh_without_demand",
        "an answer to a request without a token is called fresh",
        Replace(decision.decide, "_NO_DEMAND", "_REACHED"),
    ),
    rows(
        "fresh_without_anything_seen",
        "an answer to an empty token, which demands nothing, is called fresh",
        Replace(decision.decide, "_NOTHING_SEEN", "_REACHED"),
    ),
    catalog(
        "compare_instead_of_covers",
        "a list is fresh if Hive's compare calls it newer: only the smallest id that differs counts",
        Replace(
            decision._judge_list,
            "any_tag.missing(any_list)",
            'None if __import__("tokens").hive_compare(any_tag, any_list) >= 0 else any_tag.missing(any_list)',
        ),
    ),
    catalog(
        "hwm_is_enough",
        "a list counts as covered if its high-water mark is reached",
        Replace(
            decision._judge_list,
            "any_tagged.missing(any_wanted)",
            "None if any_tagged.hwm >= any_wanted.hwm else any_tagged.missing(any_wanted)",
        ),
    ),
    catalog(
        "table_id_not_compared",
        "a request for one table id is answered with another table",
        never(decision.decide, OTHER_TABLE_ID),
    ),
)
POSITIONS: Final = (
    rows(
        "position_by_one_domain",
        "positions of several domains are compared by the first domain that differs",
        never(MariadbPosition.order, "any_ahead and any_behind"),
    ),
    rows(
        "order_by_common_domains",
        "positions are compared by the domains that both have",
        never(MariadbPosition.order, "any_common < len(any_theirs)"),
    ),
    rows(
        "join_takes_the_smaller",
        "positions are joined by the smaller sequence",
        Replace(MariadbPosition.join, "any_mine[1] < any_theirs[1]", "any_mine[1] > any_theirs[1]"),
    ),
    rows(
        "join_forgets_domains",
        "a domain that only the second position has is forgotten",
        Replace(MariadbPosition.join, "any_mine is None or any_rest", "any_mine is not None and any_rest"),
        Replace(
            MariadbPosition.join,
            "any_mine[1] == any_theirs[1] and any_rest",
            "any_mine is not None and any_mine[1] == any_theirs[1] and any_rest",
        ),
    ),
    rows(
        "session_token_is_scalar",
        "the session's token names one shard: the last one read",
        Replace(Vector.merge, "dict(self._components)", "{}"),
    ),
    rows(
        "merge_replaces",
        "a session replaces a shard's position instead of joining both",
        Replace(Vector.merge, "any_mine.position.join(any_theirs.position)", "any_theirs.position"),
    ),
    rows(
        "merge_keeps_the_older_epoch",
        "a session keeps the older of two epochs of a shard",
        Replace(Vector.merge, "any_theirs.epoch > any_mine.epoch", "any_theirs.epoch < any_mine.epoch"),
    ),
    rows(
        "token_holds_one_domain",
        "a session's token holds only the first replication domain of a position",
        Replace(packed._pack_position, "position.domains", "dict(sorted(position.domains.items())[:1])"),
    ),
    rows(
        "token_holds_no_epoch",
        "a session's token has every position in the first epoch",
        Replace(packed.pack, "_put(out, epoch)", "_put(out, 1)"),
    ),
)
LISTS: Final = (
    catalog(
        "forgotten_aborted_id_is_missing",
        "an id that is aborted in the tag, and removed by the cleaner, counts as a missing write",
        always(ValidWriteIdList.missing, "any_id not in any_aborted"),
        Return(tables._has_more_ids, "False"),  # else a fill beside the entry makes up for it
    ),
    catalog(
        "ids_beyond_the_tag_ignored",
        "ids above the tag's high-water mark are not missing",
        never(ValidWriteIdList.missing, "any_low <= any_other.hwm"),
    ),
    catalog(
        "first_id_beyond_the_tag_ignored",
        "the first id above the tag's high-water mark is not missing",
        Replace(ValidWriteIdList.missing, "max(1, self.hwm + 1)", "max(1, self.hwm + 2)"),
    ),
    catalog(
        "open_ids_of_the_tag_ignored",
        "ids that are open in the tag are not missing",
        never(ValidWriteIdList.missing, "any_previous < any_id <= self.hwm"),
    ),
)
REPLICAS: Final = (
    replicas(
        "end_of_an_interval_ignored",
        "a MySQL interval holds another one that begins in it",
        Replace(
            mysql._includes,
            "any_i == any_n or any_held[any_i][0] > any_first or any_held[any_i][1] < any_last",
            "any_i == any_n or any_held[any_i][0] > any_first",
        ),
    ),
    replicas(
        "neighbours_are_not_merged",
        "two MySQL intervals without a gap between them stay two",
        Replace(mysql._merged, "any_start > any_last + 1", "any_start > any_last"),
    ),
    replicas(
        "appended_number_joins_one_neighbour",
        "a GTID that closes a gap leaves the later interval where it is",
        never(mysql._with_number, "any_at < len(any_intervals) and any_intervals[any_at][0] == any_number + 1"),
    ),
    replicas(
        "difference_takes_too_little",
        "what is taken from a MySQL set leaves its last transaction there",
        Replace(mysql._minus, "any_taken[any_at][1] + 1", "any_taken[any_at][1]"),
    ),
    replicas(
        "union_of_one_server_keeps_mine",
        "a union keeps this side's transactions of a server that both sides have",
        Replace(MysqlPosition.union, "_merged([*any_mine, *any_theirs])", "any_mine"),
    ),
    replicas(
        "tag_is_not_written",
        "a MySQL position's text has no tags",
        leave_out(MysqlPosition.set_text, "if tag:\n    ..."),
    ),
    replicas(
        "file_number_ignored",
        "file positions are compared by their offset alone",
        Return(FilePosition._place, "((0, ''), self.offset)"),
    ),
    replicas(
        "prefix_is_decimal",
        "a hexadecimal file offset is refused",
        Return(integers.parse_unsigned_any_base, "parse_unsigned(text, maximum, what)"),
    ),
    replicas(
        "packed_intervals_count_from_the_start",
        "the intervals in a session's token do not continue from each other",
        leave_out(packed._pack_mysql, "reached = last"),
    ),
    replicas(
        "packed_server_is_the_next_one",
        "a server that a token names again is taken for another",
        Replace(packed._uuid, "any_reader.uuids[any_number - 1]", "any_reader.uuids[0]"),
    ),
    replicas(
        "damage_is_not_seen",
        "a token's checksum is not looked at",
        never(texts._read_v2, "any_sum != _checksum(any_body)"),
    ),
    replicas(
        "first_format_has_no_epoch",
        "a token of the first format is of epoch 0",
        Replace(texts._read_v1, "(epoch, Position.parse(position))", "(0, Position.parse(position))"),
    ),
    replicas(
        "origins_do_not_order",
        "event tokens of two shards are never compared by what both had of a third",
        leave_out(event.EventToken.coordinates, "if isinstance(origin, Origin) and ...:\n    ..."),
    ),
    replicas(
        "events_of_two_epochs_are_ordered",
        "event tokens of one shard are compared whatever their epochs are",
        Replace(event.order, "any_a.epoch == any_b.epoch", "True"),
    ),
    replicas(
        "missing_shard_is_the_same",
        "a vector that lacks a shard is not older",
        never(Vector.order, "not any_other._components.keys() <= self._components.keys()"),
    ),
    replicas(
        "lists_compared_the_wrong_way",
        "of two write-id lists, what each lacks is mixed up",
        Replace(
            comparison._lists,
            "(any_a.missing(any_b), any_b.missing(any_a))",
            "(any_b.missing(any_a), any_a.missing(any_b))",
        ),
    ),
    replicas(
        "hive_compares_lengths_only",
        "as Hive compares, a longer list of exceptions is newer",
        Replace(hive_compare, "1 if any_one > any_other else -1", "1"),
    ),
    replicas(
        "allocation_opens_one_id",
        "ids that an ALLOC skipped count as valid",
        Replace(ValidWriteIdList.allocate, "range(max(1, self.hwm + 1), any_id + 1)", "range(any_id, any_id + 1)"),
    ),
    replicas(
        "range_ends_early",
        "a range's last write id is not looked at",
        Replace(ValidWriteIdList.range_valid, "min(any_high, self.hwm)", "min(any_high, self.hwm) - 1"),
    ),
    replicas(
        "compactor_sees_open_ids",
        "to a compactor an open id is not aborted",
        Return(CompactorWriteIdList.is_aborted, "ValidWriteIdList.is_aborted(self, write_id)"),
    ),
    replicas(
        "timelines_are_not_compared",
        "places in PostgreSQL's log are in order, whatever history they are of",
        never(PostgresPosition.order, "any_one.timeline != any_other.timeline or any_one.timeline == any_two"),
    ),
    replicas(
        "place_in_the_log_without_its_beginning",
        "of a place in PostgreSQL's log the lower half counts",
        Replace(logs.parse_lsn, "int(found[1], 16) << 32 | int(found[2], 16)", "int(found[2], 16)"),
    ),
    replicas(
        "join_takes_the_earlier_place",
        "of two places in PostgreSQL's log a session keeps the earlier one",
        Replace(PostgresPosition._later, "self.lsn >= other.lsn", "self.lsn <= other.lsn"),
    ),
)
BUGS: Final = (*DECISIONS, *POSITIONS, *LISTS, *REPLICAS)
