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
    ImmutableField = 66;
    CannotCreateIndex = 67;
    IndexAlreadyExists = 68;
    InvalidOptions = 72;
    InvalidNamespace = 73;
    ExceededTimeLimit = 262;
    OperationNotSupportedInTransaction = 263;
    IndexOptionsConflict = 85;
    IndexKeySpecsConflict = 86;
    OperationFailed = 96;
    NotExactValueField = 111;
    WriteConflict = 112;
    CommandNotSupported = 115;
    DocumentValidationFailure = 121;
    CommandFailed = 125;
    CappedPositionLost = 136;
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
    IncompatibleCollationVersion = 161;
    InvalidIndexSpecificationOption = 197;
    InvalidSSLConfiguration = 140;
    InvalidUUID = 207;
    KeyNotFound = 211;
    NoSuchSession = 206;
    TransactionTooOld = 225;
    QueryFeatureNotAllowed = 224;
    NotImplemented = 238;
    ConversionFailure = 241;
    NoSuchTransaction = 251;
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
    CannotInsertTimeseriesBucketsWithMixedSchema = 408;
    OutOfDiskSpace = 14031;
    DataCorruptionDetected = 282;
    NotWritablePrimary = 10107;
    BSONObjectTooLarge = 10334;
    DuplicateKey = 11000;
    InterruptedAtShutdown = 11600;
    Interrupted = 11601;
    ClientDisconnect = 279;
    MaxSubPipelineDepthExceeded = 232;
    CursorKilled = 237;
    NotAReplicaSet = 123;
    ShutdownInProgress = 91;
    ClientMetadataAppNameTooLarge = 184;
    ClientMetadataDocumentTooLarge = 185;
    ClientMetadataCannotBeMutated = 186;
    NoReplicationEnabled = 76;
    IDLFailedToParse = 40414;
    IDLUnknownField = 40415;
}

impl ErrorCode {
    /// Returns MongoDB's name of the code, or `Location` and the number.
    pub fn name(self) -> String {
        match NAMED.iter().find(|(code, _)| *code == self) {
            Some((_, name)) => (*name).to_owned(),
            None => format!("Location{}", self.0),
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}
