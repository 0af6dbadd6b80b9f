//! Every error code of this server, in one table.
//!
//! Named codes have MongoDB's number and name. Codes without a name are shown as `Location` and the number,
//! as in MongoDB.

use std::fmt;

/// A MongoDB error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub i32);

macro_rules! codes {
    ($($name:ident = $number:literal;)*) => {
        /// The named codes.
        #[allow(non_upper_case_globals, missing_docs, reason = "MongoDB's names, listed once")]
        impl ErrorCode {
            $(pub const $name: ErrorCode = ErrorCode($number);)*
        }

        /// All named codes with their names.
        pub const NAMED: &[(ErrorCode, &str)] = &[$((ErrorCode($number), stringify!($name)),)*];
    };
}

codes! {
    InternalError = 1;
    BadValue = 2;
    NoSuchKey = 4;
    GraphContainsCycle = 5;
    HostUnreachable = 6;
    HostNotFound = 7;
    UnknownError = 8;
    FailedToParse = 9;
    CannotMutateObject = 10;
    UserNotFound = 11;
    UnsupportedFormat = 12;
    Unauthorized = 13;
    TypeMismatch = 14;
    Overflow = 15;
    InvalidLength = 16;
    ProtocolError = 17;
    AuthenticationFailed = 18;
    IllegalOperation = 20;
    InvalidBSON = 22;
    LockTimeout = 24;
    NamespaceNotFound = 26;
    IndexNotFound = 27;
    PathNotViable = 28;
    RoleNotFound = 31;
    RolesNotRelated = 32;
    PrivilegeNotFound = 33;
    CannotBackfillArray = 34;
    ConflictingUpdateOperators = 40;
    FileNotOpen = 38;
    CursorNotFound = 43;
    UserDataInconsistent = 45;
    NoMatchingDocument = 47;
    NamespaceExists = 48;
    InvalidRoleModification = 49;
    MaxTimeMSExpired = 50;
    DollarPrefixedFieldName = 52;
    InvalidIdField = 53;
    NotSingleValueField = 54;
    InvalidDBRef = 55;
    EmptyFieldName = 56;
    DottedFieldName = 57;
    CommandNotFound = 59;
    ShardKeyNotFound = 61;
    StaleShardVersion = 63;
    ImmutableField = 66;
    CannotCreateIndex = 67;
    IndexAlreadyExists = 68;
    ShardNotFound = 70;
    InvalidOptions = 72;
    InvalidNamespace = 73;
    ExceededTimeLimit = 262;
    OperationNotSupportedInTransaction = 263;
    FailPointSetFailed = 266;
    PreparedTransactionInProgress = 267;
    IndexOptionsConflict = 85;
    IndexKeySpecsConflict = 86;
    OperationFailed = 96;
    NotExactValueField = 111;
    WriteConflict = 112;
    UnsatisfiableWriteConcern = 100;
    UnknownReplWriteConcern = 79;
    CommandNotSupported = 115;
    ConflictingOperationInProgress = 117;
    NamespaceNotSharded = 118;
    DocumentValidationFailure = 121;
    CommandFailed = 125;
    FailedToSatisfyReadPreference = 133;
    CappedPositionLost = 136;
    DatabaseDifferCase = 13297;
    KeyTooLong = 17280;
    ExceededMemoryLimit = 146;
    ViewDepthLimitExceeded = 165;
    CommandNotSupportedOnView = 166;
    OptionNotSupportedOnView = 167;
    InvalidPipelineOperator = 168;
    CannotIndexParallelArrays = 171;
    AmbiguousIndexKeyPattern = 181;
    QueryPlanKilled = 175;
    IndexBuildAborted = 276;
    InvalidViewDefinition = 182;
    StaleEpoch = 150;
    DurationOverflow = 159;
    IncompatibleCollationVersion = 161;
    InvalidIndexSpecificationOption = 197;
    InvalidSSLConfiguration = 140;
    InvalidUUID = 207;
    KeyNotFound = 211;
    UpdateOperationFailed = 213;
    NoSuchSession = 206;
    TransactionTooOld = 225;
    QueryFeatureNotAllowed = 224;
    NotImplemented = 238;
    SnapshotTooOld = 239;
    ConversionFailure = 241;
    SnapshotUnavailable = 246;
    NoSuchTransaction = 251;
    TransactionCommitted = 256;
    TransactionTooLarge = 257;
    NoQueryExecutionPlans = 291;
    CursorInUse = 12051;
    TooManyLogicalSessions = 261;
    QueryExceededMemoryLimitNoDiskUseAllowed = 292;
    UnsupportedOpQueryCommand = 352;
    MechanismUnavailable = 334;
    CannotConvertIndexToUnique = 359;
    CollectionUUIDMismatch = 361;
    APIVersionError = 322;
    APIStrictError = 323;
    APIMismatchError = 347;
    CannotInsertTimeseriesBucketsWithMixedSchema = 408;
    OutOfDiskSpace = 14031;
    DataCorruptionDetected = 282;
    WouldChangeOwningShard = 283;
    InvalidResumeToken = 260;
    ChangeStreamFatalError = 280;
    ChangeStreamHistoryLost = 286;
    SocketException = 9001;
    NotWritablePrimary = 10107;
    StaleConfig = 13388;
    NotPrimaryNoSecondaryOk = 13435;
    NotPrimaryOrSecondary = 13436;
    PrimarySteppedDown = 189;
    InterruptedDueToReplStateChange = 11602;
    BSONObjectTooLarge = 10334;
    NotARetryableWriteCommand = 50768;
    DuplicateKey = 11000;
    InterruptedAtShutdown = 11600;
    Interrupted = 11601;
    ClientDisconnect = 279;
    MaxSubPipelineDepthExceeded = 232;
    RetryChangeStream = 234;
    CursorKilled = 237;
    NotAReplicaSet = 123;
    NetworkTimeout = 89;
    ShutdownInProgress = 91;
    ClientMetadataAppNameTooLarge = 184;
    ClientMetadataDocumentTooLarge = 185;
    ClientMetadataCannotBeMutated = 186;
    AlreadyInitialized = 23;
    NoReplicationEnabled = 76;
    IDLFailedToParse = 40414;
    IDLUnknownField = 40415;
}

/// Declares the constants of [`location`] and the list of their numbers.
macro_rules! locations {
    ($($name:ident = $number:literal;)*) => {
        $(#[allow(missing_docs, reason = "the name says it")] pub const $name: i32 = $number;)*

        /// All numbers of this module.
        #[cfg(test)]
        pub(super) const ALL: &[i32] = &[$($number,)*];
    };
}

/// Numbers of errors for which MongoDB has no name: a client sees `Location` and the number.
///
/// They are sorted by what they are about. A number stands here and nowhere else (tidy checks it).
pub mod location {
    locations! {
        // Options of commands
        CHUNKS_OUT_OF_ORDER = 10_040;
        OBJECT_EXPECTED = 10_065;
        DISTINCT_TOO_LARGE = 17_217;
        AWAIT_WITHOUT_TOPOLOGY_VERSION = 31_368;
        TOPOLOGY_COUNTER_NEGATIVE = 31_372;
        AWAIT_TIME_NEGATIVE = 31_373;
        TOPOLOGY_COUNTER_AHEAD = 31_382;
        FIELD_TWICE = 40_413;
        DB_MISSING = 40_571;
        CURSOR_WITHOUT_SESSION = 50_736;
        CURSOR_NEEDS_SESSION = 50_737;
        CURSOR_OF_OTHER_SESSION = 50_738;
        UUID_NOT_16_BYTES = 50_755;
        ROLE_EXISTS = 51_002;
        USER_EXISTS = 51_003;
        OPTION_OUT_OF_BOUNDS = 51_024;
        EXPLAIN_WRITES = 51_029;
        MIN_MAX_WITHOUT_HINT = 51_173;
        MIN_MAX_NOT_OF_INDEX = 51_174;
        MIN_NOT_BELOW_MAX = 51_175;
        CONSTANTS_WITHOUT_PIPELINE = 51_198;
        API_VERSION_MISSING = 4_886_600;
        VERSION_INVALID = 4_926_900;
        VERSION_NOT_CONFIRMED = 7_369_100;
        // Collections and indexes
        GEO_2D_NOT_POINT = 13_026;
        GEO_2D_OUT_OF_BOUNDS = 13_027;
        TOO_MANY_KEY_FIELDS = 13_103;
        TEXT_PREFIX_ARRAY = 16_675;
        TEXT_TERMS_TOO_MANY = 16_732;
        PATH_NUMBER_AMBIGUOUS = 16_746;
        GEOMETRY_NOT_INDEXABLE = 16_755;
        HASHED_UNIQUE = 16_764;
        HASHED_ARRAY = 16_766;
        TWO_2D_FIELDS = 16_800;
        GEO_2D_FIELD_NOT_FIRST = 16_801;
        TEXT_LANGUAGE_TYPE = 17_261;
        TEXT_LANGUAGE_UNKNOWN = 17_262;
        INDEX_STATS_ARGUMENT = 28_803;
        TWO_HASHED_FIELDS = 31_303;
        INDEXED_GEOMETRY_NOT_POINT = 183_493;
        INDEXED_POINT_IN_ARRAY = 183_934;
        BUCKET_META_UNDEFINED = 5_369_600;
        BUCKET_META_UNNAMED = 5_369_601;
        BUCKET_INDEX_FILTER_UNSUPPORTED = 5_916_301;
        INDEXED_MEASUREMENT_IS_ARRAY = 5_930_501;
        CLUSTERED_INDEX_NOT_UNIQUE = 5_979_700;
        CLUSTERED_INDEX_FORMAT = 5_979_703;
        CLUSTERED_INDEX_DROPPED = 5_979_800;
        CLUSTERED_ON_OTHER_COLLECTION = 6_243_700;
        // Updates
        UPDATED_DOCUMENT_TOO_LARGE = 17_419;
        // Filters
        REGEX_OPTIONS_AFTER_PATTERN = 51_074;
        REGEX_OPTIONS_BEFORE_PATTERN = 51_075;
        REGEX_PATTERN_INVALID = 51_091;
        REGEX_FLAG_INVALID = 51_108;
        REGEX_MATCH_FAILED = 51_156;
        NEAR_NOT_ALLOWED = 5_626_500;
        // Projections
        META_NOT_STRING = 17_307;
        META_UNKNOWN = 17_308;
        UNSET_OPERAND = 31_002;
        UNSET_EMPTY = 31_119;
        UNSET_ELEMENT_NOT_STRING = 31_120;
        PROJECTION_PATH_BELOW_OTHER = 31_249;
        PROJECTION_PATH_TWICE = 31_250;
        PROJECTION_EXPRESSION_IN_EXCLUSION = 31_252;
        PROJECTION_INCLUSION_IN_EXCLUSION = 31_253;
        PROJECTION_EXCLUSION_IN_INCLUSION = 31_254;
        PROJECTION_POSITIONAL_AND_ELEM_MATCH = 31_255;
        PROJECTION_SLICE_LIMIT = 31_257;
        PROJECTION_POSITIONAL_PATH = 31_270;
        PROJECTION_POSITIONAL_VALUE = 31_271;
        PROJECTION_SLICE_PAIR = 31_272;
        PROJECTION_SLICE_OPERAND = 31_273;
        PROJECTION_ELEM_MATCH_OPERAND = 31_274;
        PROJECTION_ELEM_MATCH_NESTED = 31_275;
        PROJECTION_POSITIONAL_TWICE = 31_276;
        PROJECTION_POSITIONAL_IN_PROJECT = 31_324;
        PROJECTION_EXPRESSION_UNKNOWN = 31_325;
        PROJECTION_POSITIONAL_IN_EXCLUSION = 31_395;
        ADD_FIELDS_PATH_COLLISION = 40_176;
        ADD_FIELDS_MIXED_OBJECT = 40_181;
        ADD_FIELDS_DOTTED_IN_OBJECT = 40_183;
        POSITIONAL_NO_MATCH = 51_246;
        POSITIONAL_OTHER_ARRAY = 51_247;
        PROJECTION_EMPTY_OBJECT = 51_270;
        PROJECTION_EMPTY = 51_272;
        // Sort patterns
        SORT_NOT_OBJECT = 15_973;
        SORT_DIRECTION_TYPE = 15_974;
        SORT_DIRECTION_VALUE = 15_975;
        SORT_EMPTY = 15_976;
        SORT_EXPRESSION_NOT_META = 17_312;
        SORT_META_UNKNOWN = 31_138;
        TEXT_SCORE_MISSING = 40_218;
        SORT_FIELD_TWICE = 7_472_500;
        // Pipelines
        MERGE_NOT_FOUND = 13_113;
        GROUP_NOT_OBJECT = 15_947;
        GROUP_ID_TWICE = 15_948;
        GROUP_WITHOUT_ID = 15_955;
        LIMIT_NOT_POSITIVE = 15_958;
        MATCH_NOT_OBJECT = 15_959;
        PROJECT_NOT_OBJECT = 15_969;
        UNWIND_OPERAND = 15_981;
        GEO_NEAR_DISTANCE_FIELD_NOT_STRING = 16_606;
        GEO_NEAR_INCLUDE_LOCS_NOT_STRING = 16_607;
        OUT_TARGET = 16_990;
        REDACT_RESULT = 17_053;
        OUT_TO_CAPPED = 17_152;
        TEXT_MATCH_NOT_FIRST = 17_313;
        OUT_TO_SPECIAL_COLLECTION = 17_385;
        SAMPLE_NOT_OBJECT = 28_745;
        SAMPLE_SIZE_NOT_NUMBER = 28_746;
        SAMPLE_SIZE_NOT_POSITIVE = 28_747;
        SAMPLE_OPTION_UNKNOWN = 28_748;
        SAMPLE_SIZE_MISSING = 28_749;
        OUT_TO_SHARDED = 28_769;
        UNWIND_PATH_NOT_STRING = 28_808;
        UNWIND_PRESERVE_NOT_BOOL = 28_809;
        UNWIND_INDEX_NAME_INVALID = 28_810;
        UNWIND_OPTION_UNKNOWN = 28_811;
        UNWIND_PATH_MISSING = 28_812;
        UNWIND_PATH_PREFIX = 28_818;
        UNWIND_INDEX_NAME_PREFIX = 28_822;
        SEARCH_NOT_ENABLED = 31_082;
        MERGE_TO_SPECIAL_COLLECTION = 31_319;
        MERGE_TO_INTERNAL_DATABASE = 31_320;
        OUT_TO_INTERNAL_DATABASE = 31_321;
        STAGE_NOT_IN_UNION_WITH = 31_441;
        MERGE_ON_TWICE = 31_465;
        GRAPH_LOOKUP_TOO_MUCH_FOUND = 40_099;
        GRAPH_LOOKUP_DEPTH_NOT_NUMBER = 40_100;
        GRAPH_LOOKUP_DEPTH_NEGATIVE = 40_101;
        GRAPH_LOOKUP_DEPTH_NOT_WHOLE = 40_102;
        GRAPH_LOOKUP_ARGUMENT_NOT_STRING = 40_103;
        GRAPH_LOOKUP_ARGUMENT_UNKNOWN = 40_104;
        GRAPH_LOOKUP_ARGUMENT_MISSING = 40_105;
        SORT_BY_COUNT_OBJECT = 40_147;
        SORT_BY_COUNT_STRING = 40_148;
        SORT_BY_COUNT_OPERAND = 40_149;
        COUNT_NOT_STRING = 40_156;
        COUNT_EMPTY = 40_157;
        COUNT_DOLLAR_PREFIX = 40_158;
        COUNT_NUL = 40_159;
        COUNT_DOTTED = 40_160;
        FACET_NOT_OBJECT = 40_169;
        FACET_NOT_ARRAY = 40_170;
        FACET_STAGE_NOT_OBJECT = 40_171;
        GRAPH_LOOKUP_MATCH_NOT_OBJECT = 40_185;
        BUCKET_BOUNDARY_NOT_CONSTANT = 40_191;
        BUCKET_BOUNDARIES_TOO_FEW = 40_192;
        BUCKET_BOUNDARIES_MIXED = 40_193;
        BUCKET_BOUNDARIES_UNSORTED = 40_194;
        BUCKET_DEFAULT_NOT_CONSTANT = 40_195;
        BUCKET_OUTPUT_NOT_OBJECT = 40_196;
        BUCKET_OPTION_UNKNOWN = 40_197;
        BUCKET_OPTION_MISSING = 40_198;
        BUCKET_DEFAULT_WITHIN = 40_199;
        BUCKET_BOUNDARIES_NOT_ARRAY = 40_200;
        BUCKET_NOT_OBJECT = 40_201;
        BUCKET_GROUP_BY = 40_202;
        NEW_ROOT_NOT_OBJECT = 40_228;
        REPLACE_ROOT_NOT_OBJECT = 40_229;
        REPLACE_ROOT_OPTION_UNKNOWN = 40_230;
        REPLACE_ROOT_WITHOUT_NEW_ROOT = 40_231;
        BUCKET_AUTO_GROUP_BY = 40_239;
        BUCKET_AUTO_NOT_OBJECT = 40_240;
        BUCKET_AUTO_COUNT_NOT_NUMBER = 40_241;
        BUCKET_AUTO_COUNT_NOT_32_BIT = 40_242;
        BUCKET_AUTO_COUNT_NOT_POSITIVE = 40_243;
        BUCKET_AUTO_OUTPUT_NOT_OBJECT = 40_244;
        BUCKET_AUTO_OPTION_UNKNOWN = 40_245;
        BUCKET_AUTO_OPTION_MISSING = 40_246;
        GRANULARITY_UNKNOWN = 40_257;
        GRANULARITY_VALUE_NOT_NUMBER = 40_258;
        GRANULARITY_VALUE_NAN = 40_259;
        GRANULARITY_VALUE_NEGATIVE = 40_260;
        BUCKET_AUTO_GRANULARITY_NOT_STRING = 40_261;
        GRAPH_LOOKUP_WITHOUT_ID = 40_271;
        ADD_FIELDS_NOT_OBJECT = 40_272;
        STAGE_NOT_ONE_FIELD = 40_323;
        STAGE_UNKNOWN = 40_324;
        REPLICA_SET_ONLY = 40_573;
        CHANGE_STREAM_NOT_OBJECT = 50_808;
        SPLIT_NOT_EMPTY = 7_182_800;
        SPLIT_NOT_LAST = 7_182_802;
        CHANGE_STREAM_STARTS_TWICE = 50_674;
        STAGE_NOT_IN_FACET = 40_600;
        STAGE_NOT_LAST = 40_601;
        STAGE_NOT_FIRST = 40_602;
        GEO_NEAR_NOT_FIRST = 40_603;
        STAGE_NOT_IN_LOOKUP = 51_047;
        MERGE_ON_MISSING = 51_132;
        MERGE_ON_ELEMENT = 51_134;
        MERGE_TARGET = 51_182;
        MERGE_ON_NOT_UNIQUE = 51_183;
        MERGE_ON_ARRAY = 51_185;
        MERGE_ON_TYPE = 51_186;
        MERGE_ON_EMPTY = 51_187;
        MERGE_MODES = 51_189;
        MERGE_ON_NOT_UNIQUE_ON_ROUTER = 51_190;
        MERGE_MATCHED_TYPE = 51_191;
        MERGE_LET_WITHOUT_PIPELINE = 51_199;
        MERGE_LET_NEW = 51_273;
        BUCKET_AUTO_OUTPUT_READS_KEY = 4_544_714;
        SKIP_INVALID = 5_107_200;
        LIMIT_INVALID = 5_107_201;
        UNPACK_NOT_OBJECT = 5_612_400;
        UNPACK_TIME_FIELD_TYPE = 5_612_401;
        UNPACK_META_FIELD_TYPE = 5_612_402;
        UNPACK_META_FIELD_DOTTED = 5_612_403;
        UNPACK_OPTION_UNKNOWN = 5_612_404;
        UNPACK_TIME_FIELD_MISSING = 5_612_405;
        DENSIFY_STEP_NOT_POSITIVE = 5_733_401;
        DENSIFY_BOUNDS_INVALID = 5_733_402;
        DENSIFY_BOUNDS_NOT_TWO = 5_733_403;
        DENSIFY_BOUNDS_MIXED = 5_733_406;
        DENSIFY_PARTITION_WITHOUT_FIELDS = 5_733_408;
        DENSIFY_UNIT_WITH_NUMBERS = 5_733_409;
        DOCUMENTS_NOT_ARRAY = 5_858_203;
        GEO_NEAR_KEY_MISSING = 5_860_206;
        GEO_NEAR_QUERY_ON_MEASUREMENTS = 5_860_207;
        GEO_NEAR_INCLUDE_LOCS_ON_MEASUREMENTS = 5_860_208;
        GEO_NEAR_NEAR_MISSING = 5_860_400;
        GEO_NEAR_NEAR_NOT_CONSTANT = 5_860_401;
        GEO_NEAR_NEAR_NOT_POINT = 5_860_402;
        DENSIFY_BOUNDS_DECIMAL = 5_876_900;
        DENSIFY_TOO_MANY_DOCUMENTS = 5_897_900;
        FILL_SORT_VALUE_TWICE = 6_050_106;
        FILL_OUTPUT_NOT_OBJECT = 6_050_200;
        FILL_VALUE_AND_METHOD = 6_050_201;
        FILL_METHOD_UNKNOWN = 6_050_202;
        FILL_OUTPUT_EMPTY = 6_050_203;
        FILL_TWO_PARTITIONS = 6_050_204;
        DENSIFY_VALUE_TYPE = 6_053_600;
        DENSIFY_STEP_NOT_WHOLE = 6_586_400;
        SHARDED_CLUSTER_ONLY = 6_789_100;
        OUT_NOT_TIMESERIES = 7_268_700;
        OUT_OTHER_TIMESERIES_OPTIONS = 7_406_103;
        GEO_NEAR_MIN_NOT_CONSTANT = 7_555_701;
        GEO_NEAR_MAX_NOT_CONSTANT = 7_555_702;
        PIPELINE_TOO_LONG = 7_749_501;
        DENSIFY_PARTITION_IN_FIELD = 8_993_000;
        COUNT_IS_ID = 9_039_800;
        DENSIFY_FIELD_IN_PARTITION = 9_554_500;
        INTERNAL_UNPACK_TIME_FIELD_NUL = 9_568_701;
        INTERNAL_UNPACK_META_FIELD_NUL = 9_568_702;
        UNPACK_TIME_FIELD_NUL = 9_568_703;
        UNPACK_META_FIELD_NUL = 9_568_704;
        UNPACK_INCLUDED_NAME_NUL = 9_568_705;
        UNPACK_COMPUTED_NAME_NUL = 9_568_706;
        // Windows
        LINEAR_FILL_SORT = 605_001;
        WINDOW_LOWER_ABOVE_UPPER = 5_339_900;
        WINDOW_DOCUMENTS_WITHOUT_SORT = 5_339_901;
        FACET_TOO_LARGE = 4_031_700;
        WINDOW_RANGE_WITHOUT_SORT = 5_339_902;
        RANK_WITH_WINDOW = 5_371_601;
        RANK_WITHOUT_SORT = 5_371_602;
        RANK_WITH_ARGUMENT = 5_371_603;
        INTEGRAL_UNIT_WITHOUT_DATE = 5_423_901;
        INTEGRAL_DATE_WITHOUT_UNIT = 5_423_902;
        WINDOW_RANGE_NOT_NUMBER = 5_429_414;
        WINDOW_RANGE_NOT_DATE = 5_429_513;
        DERIVATIVE_UNIT_TOO_LONG = 5_490_704;
        INTEGRAL_UNIT_TOO_LONG = 5_490_710;
        DERIVATIVE_UNIT_WITHOUT_DATE = 5_624_900;
        DERIVATIVE_DATE_WITHOUT_UNIT = 5_624_901;
        DERIVATIVE_NOT_NUMBER = 5_624_902;
        WINDOW_OUTPUT_PATHS_CONFLICT = 6_307_900;
        // Accumulators
        ACCUMULATOR_UNKNOWN = 15_952;
        ACCUMULATOR_NOT_OBJECT = 40_234;
        ACCUMULATOR_OUTPUT_DOTTED = 40_235;
        ACCUMULATOR_OUTPUT_DOLLAR = 40_236;
        ACCUMULATOR_NOT_UNARY = 40_237;
        ACCUMULATOR_NOT_ONE = 40_238;
        FIRST_N_NOT_OBJECT = 5_787_801;
        MIN_N_NOT_OBJECT = 5_787_900;
        N_FIELD_UNKNOWN = 5_787_901;
        N_NOT_NUMBER = 5_787_902;
        N_NOT_WHOLE = 5_787_903;
        N_MISSING = 5_787_906;
        N_INPUT_MISSING = 5_787_907;
        N_NOT_POSITIVE = 5_787_908;
        TOP_NOT_OBJECT = 5_788_001;
        TOP_FIELD_UNKNOWN = 5_788_002;
        TOP_N_MISSING = 5_788_003;
        TOP_OUTPUT_MISSING = 5_788_004;
        TOP_SORT_BY_MISSING = 5_788_005;
        N_INPUT_NOT_ARRAY = 5_788_200;
        PERCENTILE_NOT_OBJECT = 7_429_703;
        MEDIAN_NOT_OBJECT = 7_436_100;
        // Expressions: paths, variables, objects
        EXPRESSION_NOT_ONE_FIELD = 15_983;
        PATH_COMPONENT_EMPTY = 15_998;
        ARGUMENT_COUNT = 16_020;
        OBJECT_FIELD_TWICE = 16_406;
        PATH_DOLLAR_PREFIX = 16_410;
        PATH_NUL = 16_411;
        FIELD_NAME_DOTTED = 16_412;
        VARIABLE_NAME_MISSING = 16_872;
        LET_NOT_OBJECT = 16_874;
        LET_FIELD_UNKNOWN = 16_875;
        LET_VARS_MISSING = 16_876;
        LET_IN_MISSING = 16_877;
        VARIABLE_UNDEFINED = 17_276;
        ARGUMENT_COUNT_RANGE = 28_667;
        BSON_SIZE_NOT_OBJECT = 31_393;
        PATH_EMPTY = 40_352;
        PATH_TRAILING_DOT = 40_353;
        MERGE_OBJECTS_NOT_OBJECT = 40_400;
        CLUSTER_TIME_UNAVAILABLE = 51_144;
        BINARY_SIZE_TYPE = 51_276;
        COMPARISON_ARGUMENT_COUNT = 1_257_300;
        RAND_WITH_ARGUMENT = 3_040_501;
        GET_FIELD_ARGUMENT_UNKNOWN = 3_041_701;
        GET_FIELD_FIELD_MISSING = 3_041_702;
        GET_FIELD_INPUT_MISSING = 3_041_703;
        GET_FIELD_FIELD_NOT_STRING = 3_041_704;
        SET_FIELD_NOT_OBJECT = 4_161_100;
        SET_FIELD_ARGUMENT_UNKNOWN = 4_161_101;
        SET_FIELD_FIELD_MISSING = 4_161_102;
        SET_FIELD_VALUE_MISSING = 4_161_103;
        SET_FIELD_INPUT_NOT_OBJECT = 4_161_105;
        SET_FIELD_FIELD_NOT_STRING = 4_161_107;
        SET_FIELD_INPUT_MISSING = 4_161_109;
        SET_FIELD_FIELD_NUL = 9_534_700;
        // Expressions: arithmetic
        DIVIDE_BY_ZERO = 16_608;
        MOD_BY_ZERO = 16_610;
        MOD_NOT_NUMERIC = 16_611;
        ADD_TWO_DATES = 16_612;
        ABS_OVERFLOW = 28_680;
        SQRT_NEGATIVE = 28_714;
        LOG_NOT_NUMERIC = 28_756;
        LOG_BASE_NOT_NUMERIC = 28_757;
        LOG_NOT_POSITIVE = 28_758;
        LOG_BASE_INVALID = 28_759;
        LOG10_NOT_POSITIVE = 28_761;
        POW_BASE_NOT_NUMERIC = 28_762;
        POW_EXPONENT_NOT_NUMERIC = 28_763;
        POW_ZERO_TO_NEGATIVE = 28_764;
        MATH_NOT_NUMERIC = 28_765;
        LN_NOT_POSITIVE = 28_766;
        TRIGONOMETRY_OUT_OF_RANGE = 50_989;
        ATAN2_FIRST_NOT_NUMERIC = 51_044;
        ATAN2_SECOND_NOT_NUMERIC = 51_045;
        ROUND_OVERFLOW = 51_080;
        ROUND_NOT_NUMERIC = 51_081;
        ROUND_PLACE_NOT_WHOLE = 51_082;
        ROUND_PLACE_OUT_OF_RANGE = 51_083;
        // Expressions: arrays
        MAP_NOT_OBJECT = 16_878;
        MAP_ARGUMENT_UNKNOWN = 16_879;
        MAP_INPUT_MISSING = 16_880;
        MAP_IN_MISSING = 16_882;
        MAP_INPUT_NOT_ARRAY = 16_883;
        ALL_ELEMENTS_TRUE_NOT_ARRAY = 17_040;
        ANY_ELEMENT_TRUE_NOT_ARRAY = 17_041;
        SET_IS_SUBSET_SECOND_NOT_ARRAY = 17_042;
        SET_UNION_NOT_ARRAY = 17_043;
        SET_EQUALS_NOT_ARRAY = 17_044;
        SET_EQUALS_ARGUMENT_COUNT = 17_045;
        SET_IS_SUBSET_FIRST_NOT_ARRAY = 17_046;
        SET_INTERSECTION_NOT_ARRAY = 17_047;
        SET_DIFFERENCE_FIRST_NOT_ARRAY = 17_048;
        SET_DIFFERENCE_SECOND_NOT_ARRAY = 17_049;
        SIZE_NOT_ARRAY = 17_124;
        FILTER_NOT_OBJECT = 28_646;
        FILTER_ARGUMENT_UNKNOWN = 28_647;
        FILTER_INPUT_MISSING = 28_648;
        FILTER_COND_MISSING = 28_650;
        FILTER_INPUT_NOT_ARRAY = 28_651;
        CONCAT_ARRAYS_NOT_ARRAY = 28_664;
        ARRAY_ELEMENT_NOT_ARRAY = 28_689;
        ARRAY_ELEM_AT_INDEX_TYPE = 28_690;
        ARRAY_ELEM_AT_INDEX_RANGE = 28_691;
        SLICE_NOT_ARRAY = 28_724;
        SLICE_SECOND_TYPE = 28_725;
        SLICE_SECOND_RANGE = 28_726;
        SLICE_THIRD_TYPE = 28_727;
        SLICE_THIRD_RANGE = 28_728;
        SLICE_THIRD_NOT_POSITIVE = 28_729;
        REVERSE_ARRAY_NOT_ARRAY = 34_435;
        RANGE_START_TYPE = 34_443;
        RANGE_START_RANGE = 34_444;
        RANGE_END_TYPE = 34_445;
        RANGE_END_RANGE = 34_446;
        RANGE_STEP_TYPE = 34_447;
        RANGE_STEP_RANGE = 34_448;
        RANGE_STEP_ZERO = 34_449;
        ZIP_NOT_OBJECT = 34_460;
        ZIP_INPUTS_NOT_ARRAY = 34_461;
        ZIP_DEFAULTS_NOT_ARRAY = 34_462;
        ZIP_LONGEST_NOT_BOOL = 34_463;
        ZIP_ARGUMENT_UNKNOWN = 34_464;
        ZIP_INPUTS_EMPTY = 34_465;
        ZIP_DEFAULTS_WITHOUT_LONGEST = 34_466;
        ZIP_DEFAULTS_LENGTH = 34_467;
        ZIP_INPUT_NOT_ARRAY = 34_468;
        REDUCE_NOT_OBJECT = 40_075;
        REDUCE_ARGUMENT_UNKNOWN = 40_076;
        REDUCE_INPUT_MISSING = 40_077;
        REDUCE_INITIAL_VALUE_MISSING = 40_078;
        REDUCE_IN_MISSING = 40_079;
        REDUCE_INPUT_NOT_ARRAY = 40_080;
        IN_NOT_ARRAY = 40_081;
        INDEX_OF_ARRAY_NOT_ARRAY = 40_090;
        ARRAY_TO_OBJECT_NOT_ARRAY = 40_386;
        OBJECT_TO_ARRAY_NOT_OBJECT = 40_390;
        ARRAY_TO_OBJECT_PAIR_AFTER_OBJECT = 40_391;
        ARRAY_TO_OBJECT_KEY_COUNT = 40_392;
        ARRAY_TO_OBJECT_KEYS = 40_393;
        ARRAY_TO_OBJECT_K_NOT_STRING = 40_394;
        ARRAY_TO_OBJECT_FIRST_NOT_STRING = 40_395;
        ARRAY_TO_OBJECT_OBJECT_AFTER_PAIR = 40_396;
        ARRAY_TO_OBJECT_PAIR_LENGTH = 40_397;
        ARRAY_TO_OBJECT_ELEMENT_TYPE = 40_398;
        FILTER_LIMIT_TYPE = 327_391;
        FILTER_LIMIT_NOT_POSITIVE = 327_392;
        SORT_ARRAY_NOT_OBJECT = 2_942_500;
        SORT_ARRAY_ARGUMENT_UNKNOWN = 2_942_501;
        SORT_ARRAY_INPUT_MISSING = 2_942_502;
        SORT_ARRAY_SORT_BY_MISSING = 2_942_503;
        SORT_ARRAY_INPUT_NOT_ARRAY = 2_942_504;
        SORT_ARRAY_SORT_BY_INVALID = 2_942_505;
        SORT_ARRAY_DIRECTION = 2_942_506;
        ARRAY_TO_OBJECT_FIRST_NUL = 4_940_400;
        ARRAY_TO_OBJECT_K_NUL = 4_940_401;
        // Shard keys
        KEY_UPDATE_WITHOUT_KEY = 31_025;
        // Expressions: conditions and conversions
        COND_IF_MISSING = 17_080;
        COND_THEN_MISSING = 17_081;
        COND_ELSE_MISSING = 17_082;
        COND_ARGUMENT_UNKNOWN = 17_083;
        SWITCH_NOT_OBJECT = 40_060;
        SWITCH_BRANCHES_NOT_ARRAY = 40_061;
        SWITCH_BRANCH_NOT_OBJECT = 40_062;
        SWITCH_BRANCH_ARGUMENT_UNKNOWN = 40_063;
        SWITCH_CASE_MISSING = 40_064;
        SWITCH_THEN_MISSING = 40_065;
        SWITCH_NO_MATCH = 40_066;
        SWITCH_ARGUMENT_UNKNOWN = 40_067;
        SWITCH_BRANCHES_EMPTY = 40_068;
        CONVERT_FORMAT_NOT_STRING = 4_341_107;
        CONVERT_FORMAT_UNKNOWN = 4_341_125;
        // Expressions: dates
        DATE_CONVERSION = 16_006;
        DATE_TO_STRING_FORMAT_NOT_STRING = 18_533;
        DATE_TO_STRING_ARGUMENT_UNKNOWN = 18_534;
        DATE_FORMAT_PERCENT_UNMATCHED = 18_535;
        DATE_FORMAT_LETTER_UNKNOWN = 18_536;
        DATE_FORMAT_YEAR_OUT_OF_RANGE = 18_537;
        DATE_TO_STRING_DATE_MISSING = 18_628;
        DATE_TO_STRING_NOT_OBJECT = 18_629;
        DATE_PART_OUT_OF_RANGE = 31_034;
        ISO_WEEK_YEAR_OUT_OF_RANGE = 31_095;
        TIME_ZONE_UNKNOWN = 40_485;
        DATE_PARTS_NATURAL_WITH_ISO = 40_489;
        DATE_PART_NOT_INTEGER = 40_515;
        DATE_PARTS_YEAR_MISSING = 40_516;
        TIME_ZONE_NOT_STRING = 40_517;
        DATE_FROM_PARTS_ARGUMENT_UNKNOWN = 40_518;
        DATE_FROM_PARTS_NOT_OBJECT = 40_519;
        DATE_TO_PARTS_ARGUMENT_UNKNOWN = 40_520;
        DATE_TO_PARTS_ISO8601_NOT_BOOL = 40_521;
        DATE_TO_PARTS_DATE_MISSING = 40_522;
        YEAR_OUT_OF_RANGE = 40_523;
        DATE_TO_PARTS_NOT_OBJECT = 40_524;
        DATE_PARTS_ISO_WITH_NATURAL = 40_525;
        DATE_PART_TIME_ZONE_NOT_STRING = 40_533;
        DATE_PART_OPTION_UNKNOWN = 40_535;
        DATE_PART_ARRAY_LENGTH = 40_536;
        DATE_PART_DATE_MISSING = 40_539;
        DATE_FROM_STRING_NOT_OBJECT = 40_540;
        DATE_FROM_STRING_ARGUMENT_UNKNOWN = 40_541;
        DATE_FROM_STRING_DATE_STRING_MISSING = 40_542;
        DATE_FROM_STRING_FORMAT_NOT_STRING = 40_684;
        DATE_DIFF_NOT_OBJECT = 5_166_301;
        DATE_DIFF_ARGUMENT_UNKNOWN = 5_166_302;
        DATE_DIFF_START_DATE_MISSING = 5_166_303;
        DATE_DIFF_END_DATE_MISSING = 5_166_304;
        DATE_DIFF_UNIT_MISSING = 5_166_305;
        DATE_DIFF_NOT_DATE = 5_166_307;
        DATE_ADD_NOT_OBJECT = 5_166_400;
        DATE_ADD_ARGUMENT_UNKNOWN = 5_166_401;
        DATE_ADD_ARGUMENT_MISSING = 5_166_402;
        DATE_ADD_START_DATE_NOT_DATE = 5_166_403;
        DATE_ADD_UNIT_NOT_STRING = 5_166_404;
        DATE_ADD_AMOUNT_NOT_WHOLE = 5_166_405;
        DATE_ADD_OVERFLOW = 5_166_406;
        DATE_TRUNC_NOT_OBJECT = 5_439_007;
        DATE_TRUNC_ARGUMENT_UNKNOWN = 5_439_008;
        DATE_TRUNC_DATE_MISSING = 5_439_009;
        DATE_TRUNC_UNIT_MISSING = 5_439_010;
        DATE_TRUNC_NOT_DATE = 5_439_012;
        TIME_UNIT_NOT_STRING = 5_439_013;
        TIME_UNIT_UNKNOWN = 5_439_014;
        START_OF_WEEK_NOT_STRING = 5_439_015;
        START_OF_WEEK_UNKNOWN = 5_439_016;
        DATE_TRUNC_BIN_SIZE_TYPE = 5_439_017;
        DATE_TRUNC_BIN_SIZE_NOT_POSITIVE = 5_439_018;
        TS_SECOND_NOT_TIMESTAMP = 5_687_301;
        TS_INCREMENT_NOT_TIMESTAMP = 5_687_302;
        DATE_ADD_AMOUNT_OUT_OF_RANGE = 5_976_500;
        DATE_SUBTRACT_AMOUNT_INVALID = 6_045_000;
        // Expressions: strings
        STRING_CONVERSION = 16_007;
        SUBSTR_START_TYPE = 16_034;
        SUBSTR_LENGTH_TYPE = 16_035;
        CONCAT_NOT_STRING = 16_702;
        SUBSTR_START_IN_CHARACTER = 28_656;
        SUBSTR_END_IN_CHARACTER = 28_657;
        SUBSTR_CP_START_TYPE = 34_450;
        SUBSTR_CP_START_RANGE = 34_451;
        SUBSTR_CP_LENGTH_TYPE = 34_452;
        SUBSTR_CP_LENGTH_RANGE = 34_453;
        SUBSTR_CP_LENGTH_NEGATIVE = 34_454;
        SUBSTR_CP_START_NEGATIVE = 34_455;
        STR_LEN_CP_NOT_STRING = 34_471;
        STR_LEN_BYTES_NOT_STRING = 34_473;
        SPLIT_FIRST_NOT_STRING = 40_085;
        SPLIT_SECOND_NOT_STRING = 40_086;
        SPLIT_SEPARATOR_EMPTY = 40_087;
        INDEX_OF_BYTES_FIRST_NOT_STRING = 40_091;
        INDEX_OF_BYTES_SECOND_NOT_STRING = 40_092;
        INDEX_OF_CP_FIRST_NOT_STRING = 40_093;
        INDEX_OF_CP_SECOND_NOT_STRING = 40_094;
        INDEX_OF_BOUND_TYPE = 40_096;
        INDEX_OF_BOUND_NEGATIVE = 40_097;
        TRIM_ARGUMENT_UNKNOWN = 50_694;
        TRIM_INPUT_MISSING = 50_695;
        TRIM_NOT_OBJECT = 50_696;
        TRIM_INPUT_NOT_STRING = 50_699;
        TRIM_CHARS_NOT_STRING = 50_700;
        SUBSTR_START_NEGATIVE = 50_752;
        REGEX_INPUT_MISSING = 51_022;
        REGEX_REGEX_MISSING = 51_023;
        REGEX_ARGUMENT_UNKNOWN = 51_031;
        REGEX_NOT_OBJECT = 51_103;
        REGEX_INPUT_NOT_STRING = 51_104;
        REGEX_REGEX_TYPE = 51_105;
        REGEX_OPTIONS_NOT_STRING = 51_106;
        REGEX_OPTIONS_TWICE = 51_107;
        REGEX_NUL = 51_109;
        REGEX_INVALID = 51_111;
        REGEX_FIND_ALL_TOO_LARGE = 51_151;
        REPLACE_REPLACEMENT_NOT_STRING = 51_744;
        REPLACE_FIND_NOT_STRING = 51_745;
        REPLACE_INPUT_NOT_STRING = 51_746;
        REPLACE_REPLACEMENT_MISSING = 51_747;
        REPLACE_FIND_MISSING = 51_748;
        REPLACE_INPUT_MISSING = 51_749;
        REPLACE_ARGUMENT_UNKNOWN = 51_750;
        REPLACE_NOT_OBJECT = 51_751;
    }
}

impl ErrorCode {
    /// Returns MongoDB's name of the code, or `Location` and the number.
    pub fn name(self) -> String {
        match NAMED.iter().find(|(code, _)| *code == self) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("Location{}", self.0),
        }
    }

    /// True if the code says that this server is no primary, or will not be one: drivers look for another one.
    pub(crate) fn is_of_state_change(self) -> bool {
        matches!(
            self,
            Self::NotWritablePrimary
                | Self::NotPrimaryNoSecondaryOk
                | Self::NotPrimaryOrSecondary
                | Self::InterruptedAtShutdown
                | Self::InterruptedDueToReplStateChange
                | Self::PrimarySteppedDown
                | Self::ShutdownInProgress
        )
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_name() {
        let named = NAMED.iter().map(|(code, _)| code.0);
        let mut all: Vec<i32> = named.chain(location::ALL.iter().copied()).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
