//! The names of the checks. A client that does not report one of its checks fails.

/// Checks of every driver.
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

/// Checks of the shell.
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

/// Changes of measurements, by bulk writes of a driver.
pub(crate) const BULK_CHANGES: &[&str] = &[
    "bulk_write_of_all_kinds",
    "bulk_write_that_fails",
    "bulk_write_of_the_client",
    "find_and_change",
    "change_of_many_series",
    "no_duplicates",
];

/// The web page, in a browser.
pub(crate) const WEB: &[&str] = &[
    "web_lists_collections",
    "web_draws_live_figures",
    "web_draws_buckets",
    "web_walks_through_buckets_by_keyboard",
    "web_says_what_it_leaves_out",
    "web_answers_as_table_and_chart",
    "web_splits_lines_and_tells_values",
    "web_draws_an_explain",
    "web_tells_what_is_wrong",
    "web_stops_a_query",
    "web_keeps_digits_and_markup_as_they_are",
    "web_tells_about_a_collection",
    "web_draws_a_rollup_over_its_source",
    "web_counts_series_by_metadata",
    "web_shows_the_health_of_a_collection",
    "web_adds_queries_up_and_explains_them",
    "web_completes_stages_operators_and_fields",
    "web_saves_queries_in_the_browser",
    "web_imports_a_file_and_names_bad_lines",
    "web_imports_parquet",
    "web_inserts_live_demo_data",
    "web_fits_narrow_and_dark_screens",
    "web_logs_in_and_out",
    "web_loads_nothing_from_elsewhere",
];

/// Checks of logins.
pub(crate) const LOGINS: &[&str] = &["log_in_by_scram", "wrong_password"];

/// Changes of measurements in the shell.
pub(crate) const SHELL_CHANGES: &[&str] = &[
    "change_one",
    "change_many",
    "bulk_changes",
    "explain_changes",
];

/// Changes of measurements through a library that maps documents to models.
pub(crate) const MODELS: &[&str] = &[
    "create_collection",
    "save_new",
    "save_changed",
    "save_to_another_time_and_series",
    "save_in_bulk",
    "save_of_what_is_gone",
    "save_of_arrays_by_position",
    "find_and_change",
    "transactions",
    "watch",
    "update_and_delete",
];

/// The same through a library that maps documents to entities.
pub(crate) const ENTITIES: &[&str] = &[
    "create_collection",
    "insert_entities",
    "save_by_id",
    "save_to_another_time_and_series",
    "updates",
    "find_and_change",
    "bulk_operations",
    "transactions",
    "remove_entities",
];

/// Changes that a connector copies, follows and resumes.
pub(crate) const CONNECTOR: &[&str] = &[
    "copy",
    "follow_documents",
    "follow_measurements",
    "follow_transactions",
    "resume",
];

/// Dumps, restores, exports and imports of MongoDB's tools.
pub(crate) const TOOLS: &[&str] = &[
    "dump_with_the_oplog_under_load",
    "dump_everything_and_restore",
    "restore_an_archive_under_other_names",
    "restore_compressed_files",
    "dump_what_a_query_finds",
    "drop_before_restore",
    "dump_and_restore_rollups",
    "preserve_uuids",
    "users_of_one_database",
    "log_in_to_dump_and_restore",
    "export_and_import",
];

/// The folders of the drivers' unified tests that the Node and the Java driver run.
pub(crate) const UNIFIED_SPECS: &[&str] = &[
    "change_streams",
    "retryable_reads",
    "retryable_writes",
    "sessions",
    "transactions",
    "convenient_transactions",
];

/// The files of pymongo's own tests.
pub(crate) const PYMONGO_SUITE: &[&str] = &[
    "test_bulk",
    "test_client_bulk_write",
    "test_collation",
    "test_collection",
    "test_collection_management",
    "test_command_monitoring",
    "test_comment",
    "test_crud_unified",
    "test_cursor",
    "test_custom_types",
    "test_database",
    "test_gridfs",
    "test_handshake_unified",
    "test_raw_bson",
    "test_run_command",
    "test_versioned_api_integration",
    "test_change_stream",
    "test_causal_consistency",
    "test_read_write_concern_spec",
    "test_retryable_reads",
    "test_retryable_reads_unified",
    "test_retryable_writes",
    "test_retryable_writes_unified",
    "test_session",
    "test_sessions_unified",
    "test_transactions",
    "test_transactions_unified",
];

/// What Telegraf sends through its outputs for InfluxDB and MongoDB.
pub(crate) const TELEGRAF: &[&str] = &[
    "telegraf_writes_lines",
    "telegraf_repeats_lines",
    "telegraf_keeps_good_lines",
    "telegraf_writes_lines_of_version_2",
    "telegraf_writes_documents",
    "telegraf_logs_in",
];

/// Programs that read columns.
pub(crate) const COLUMNS: &[&str] = &[
    "columns_pyarrow",
    "columns_pandas",
    "columns_polars",
    "columns_duckdb",
    "columns_pymongoarrow",
    "columns_files",
    "columns_errors",
];

/// Clients of InfluxDB, and the requests of Grafana's data source.
pub(crate) const INFLUXDB: &[&str] = &[
    "influx_ping",
    "influx_databases",
    "influx_write_points",
    "influx_write_gzip",
    "influx_write_v2",
    "influx_partial_write",
    "influx_query_raw",
    "influx_query_groups",
    "influx_query_chunked",
    "influx_show",
    "influx_into",
    "influx_errors",
    "grafana_queries",
    "influx_drop",
];
