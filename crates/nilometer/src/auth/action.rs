//! The actions a privilege can allow, by MongoDB's names, and sets of actions.
//!
//! Actions without meaning on a standalone are accepted, so that a role written for MongoDB can be created
//! unchanged.

use crate::error::{Error, ErrorCode, Result};

macro_rules! actions {
    ($($action:ident = $name:literal,)*) => {
        /// An action a privilege can allow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "MongoDB's names, listed once")]
        pub enum Action { $($action,)* }

        /// All actions with their names, sorted by name.
        const NAMED: &[(Action, &str)] = &[$((Action::$action, $name),)*];
    };
}

actions! {
    AddShard = "addShard",
    AnyAction = "anyAction",
    AppendOplogNote = "appendOplogNote",
    ApplicationMessage = "applicationMessage",
    ApplyOps = "applyOps",
    AuditConfigure = "auditConfigure",
    AuthSchemaUpgrade = "authSchemaUpgrade",
    BypassDocumentValidation = "bypassDocumentValidation",
    BypassWriteBlockingMode = "bypassWriteBlockingMode",
    ChangeCustomData = "changeCustomData",
    ChangeOwnCustomData = "changeOwnCustomData",
    ChangeOwnPassword = "changeOwnPassword",
    ChangePassword = "changePassword",
    ChangeStream = "changeStream",
    CheckMetadataConsistency = "checkMetadataConsistency",
    CleanupOrphaned = "cleanupOrphaned",
    CloseAllDatabases = "closeAllDatabases",
    CollMod = "collMod",
    CollStats = "collStats",
    Compact = "compact",
    ConnPoolStats = "connPoolStats",
    ConvertToCapped = "convertToCapped",
    CreateCollection = "createCollection",
    CreateIndex = "createIndex",
    CreateRole = "createRole",
    CreateSearchIndexes = "createSearchIndexes",
    CreateUser = "createUser",
    DbHash = "dbHash",
    DbStats = "dbStats",
    DropCollection = "dropCollection",
    DropConnections = "dropConnections",
    DropDatabase = "dropDatabase",
    DropIndex = "dropIndex",
    DropRole = "dropRole",
    DropSearchIndex = "dropSearchIndex",
    DropUser = "dropUser",
    EnableProfiler = "enableProfiler",
    EnableSharding = "enableSharding",
    Find = "find",
    FlushRouterConfig = "flushRouterConfig",
    ForceUUID = "forceUUID",
    Fsync = "fsync",
    GetClusterParameter = "getClusterParameter",
    GetCmdLineOpts = "getCmdLineOpts",
    GetDefaultRWConcern = "getDefaultRWConcern",
    GetLog = "getLog",
    GetParameter = "getParameter",
    GetShardMap = "getShardMap",
    GetShardVersion = "getShardVersion",
    GrantRole = "grantRole",
    HostInfo = "hostInfo",
    Impersonate = "impersonate",
    IndexStats = "indexStats",
    Inprog = "inprog",
    Insert = "insert",
    Internal = "internal",
    InvalidateUserCache = "invalidateUserCache",
    KillAnyCursor = "killAnyCursor",
    KillAnySession = "killAnySession",
    KillCursors = "killCursors",
    Killop = "killop",
    ListClusterCatalog = "listClusterCatalog",
    ListCollections = "listCollections",
    ListCursors = "listCursors",
    ListDatabases = "listDatabases",
    ListIndexes = "listIndexes",
    ListSearchIndexes = "listSearchIndexes",
    ListSessions = "listSessions",
    ListShards = "listShards",
    LogRotate = "logRotate",
    MoveChunk = "moveChunk",
    MoveCollection = "moveCollection",
    MovePrimary = "movePrimary",
    Netstat = "netstat",
    OidReset = "oidReset",
    OperationMetrics = "operationMetrics",
    PlanCacheIndexFilter = "planCacheIndexFilter",
    PlanCacheRead = "planCacheRead",
    PlanCacheWrite = "planCacheWrite",
    QueryStatsRead = "queryStatsRead",
    QueryStatsReadTransformed = "queryStatsReadTransformed",
    ReIndex = "reIndex",
    RefineCollectionShardKey = "refineCollectionShardKey",
    Remove = "remove",
    RemoveShard = "removeShard",
    RenameCollection = "renameCollection",
    RenameCollectionSameDB = "renameCollectionSameDB",
    ReplSetConfigure = "replSetConfigure",
    ReplSetGetConfig = "replSetGetConfig",
    ReplSetGetStatus = "replSetGetStatus",
    ReplSetHeartbeat = "replSetHeartbeat",
    ReplSetReconfig = "replSetReconfig",
    ReplSetStateChange = "replSetStateChange",
    ReshardCollection = "reshardCollection",
    Resync = "resync",
    RevokeRole = "revokeRole",
    RotateCertificates = "rotateCertificates",
    ServerStatus = "serverStatus",
    SetAuthenticationRestriction = "setAuthenticationRestriction",
    SetClusterParameter = "setClusterParameter",
    SetDefaultRWConcern = "setDefaultRWConcern",
    SetFeatureCompatibilityVersion = "setFeatureCompatibilityVersion",
    SetParameter = "setParameter",
    SetUserWriteBlockMode = "setUserWriteBlockMode",
    ShardingState = "shardingState",
    Shutdown = "shutdown",
    SplitChunk = "splitChunk",
    SplitVector = "splitVector",
    StorageDetails = "storageDetails",
    Top = "top",
    Touch = "touch",
    Unlock = "unlock",
    Update = "update",
    UpdateSearchIndex = "updateSearchIndex",
    UseUUID = "useUUID",
    Validate = "validate",
    ViewRole = "viewRole",
    ViewUser = "viewUser",
}

impl Action {
    /// Returns MongoDB's name.
    pub fn name(self) -> &'static str {
        let found = NAMED.iter().find(|(action, _)| *action == self);
        found.map_or("", |(_, name)| name)
    }

    /// Returns the action of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let at = NAMED.binary_search_by(|(_, known)| known.cmp(&name)).ok()?;
        Some(NAMED[at].0)
    }
}

/// A set of actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionSet(u128);

impl ActionSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set of all actions.
    pub const ALL: Self = Self(u128::MAX);

    /// Returns the set of these actions.
    pub const fn of(actions: &[Action]) -> Self {
        let mut bits = 0;
        let mut rest = actions;
        while let [first, others @ ..] = rest {
            bits |= 1 << (*first as u32);
            rest = others;
        }
        Self(bits)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the actions that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True if the set contains all of `other`.
    pub fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the sorted names; `anyAction` alone if the set contains all actions.
    pub fn names(self) -> Vec<&'static str> {
        if self.covers(Self::of(&[Action::AnyAction])) {
            return vec![Action::AnyAction.name()];
        }
        let within = NAMED
            .iter()
            .filter(|(action, _)| self.covers(Self::of(&[*action])));
        within.map(|(_, name)| *name).collect()
    }

    /// Returns the set of the actions with these names; `anyAction` is all of them.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut set = Self::NONE;
        for name in names {
            let action = Action::from_name(name).ok_or_else(|| {
                Error::new(
                    ErrorCode::FailedToParse,
                    format!("Unrecognized action privilege strings: {name}"),
                )
            })?;
            set = match action {
                Action::AnyAction => Self::ALL,
                other => set.union(Self::of(&[other])),
            };
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_fit_the_set() {
        assert!(NAMED.is_sorted_by(|a, b| a.1 < b.1));
        assert!(NAMED.len() <= 128);
        for (action, name) in NAMED {
            assert_eq!(Action::from_name(name), Some(*action));
            assert_eq!(action.name(), *name);
        }
        assert_eq!(Action::from_name("Find"), None);
    }

    #[test]
    fn sets_have_union_difference_and_names() {
        let both = ActionSet::of(&[Action::Find, Action::Insert]);
        assert!(both.covers(ActionSet::of(&[Action::Find])));
        assert!(!ActionSet::of(&[Action::Find]).covers(both));
        assert!(ActionSet::ALL.covers(both));
        assert_eq!(both.names(), ["find", "insert"]);
        assert_eq!(ActionSet::ALL.names(), ["anyAction"]);
        assert_eq!(ActionSet::parse(["anyAction"]).unwrap(), ActionSet::ALL);
        assert!(ActionSet::parse(["fly"]).is_err());
        let left = both.without(ActionSet::of(&[Action::Find]));
        assert_eq!(left.names(), ["insert"]);
    }
}
