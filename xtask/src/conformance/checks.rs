//! The names of the checks: a client that leaves one out is found out here.

/// What every driver does.
pub(crate) const DRIVER: &[&str] = &[
    "connect_and_ping",
    "create_time_series",
    "insert_one_by_one",
    "insert_in_bulk",
    "find_filter_sort_limit_projection",
    "aggregate_by_hour",
    "cursor_over_batches",
    "cursor_closed_early",
    "count_and_distinct",
    "list_collections_and_databases",
    "read_buckets",
    "every_type_comes_back",
    "ordinary_collection",
    "unacknowledged_write",
    "compressed_messages",
    "ordered_and_unordered_errors",
    "error_create_with_other_options",
    "error_no_date",
    "error_unknown_command",
    "error_unknown_stage",
    "drop",
];

/// The same for a driver that refuses to send unacknowledged writes.
pub(crate) const DRIVER_ACKNOWLEDGED: &[&str] = &[
    "connect_and_ping",
    "create_time_series",
    "insert_one_by_one",
    "insert_in_bulk",
    "find_filter_sort_limit_projection",
    "aggregate_by_hour",
    "cursor_over_batches",
    "cursor_closed_early",
    "count_and_distinct",
    "list_collections_and_databases",
    "read_buckets",
    "every_type_comes_back",
    "ordinary_collection",
    "compressed_messages",
    "ordered_and_unordered_errors",
    "error_create_with_other_options",
    "error_no_date",
    "error_unknown_command",
    "error_unknown_stage",
    "drop",
];

/// The tour of the language, on both kinds of collection.
pub(crate) const TOUR: &[&str] = &[
    "tour_begin",
    "tour_match",
    "tour_expressions",
    "tour_accumulators",
    "tour_windows",
    "tour_stages",
    "tour_out_and_merge",
    "tour_collation",
    "tour_geo",
    "tour_hint_and_explain",
    "tour_cursors",
    "tour_end",
];

/// What the shell does.
pub(crate) const SHELL: &[&str] = &[
    "tour",
    "greeting",
    "create_and_insert",
    "iterate_a_cursor",
    "collection_helpers",
    "statistics",
    "server_information",
    "explain",
    "views",
    "errors",
    "drop",
];
