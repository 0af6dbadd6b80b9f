//! The built-in roles.
//!
//! Some exist in every database and are limited to it; those with a wider reach exist in `admin` only. A
//! role that may read a database may not read the bucket collections of its time-series collections by
//! their own names: readers use the time-series collection. Backup, restore and the administrator of a
//! database may.

use super::action::Action as A;
use super::action::ActionSet;
use super::names::RoleName;
use super::privilege::Privileges;
use super::resource::Resource;

/// Roles of every database.
const DATABASE_ROLES: &[&str] = &["dbAdmin", "dbOwner", "read", "readWrite", "userAdmin"];

/// Roles of `admin` only.
const ADMIN_ROLES: &[&str] = &[
    "__system",
    "backup",
    "clusterAdmin",
    "clusterManager",
    "clusterMonitor",
    "dbAdminAnyDatabase",
    "enableSharding",
    "hostManager",
    "readAnyDatabase",
    "readWriteAnyDatabase",
    "restore",
    "root",
    "userAdminAnyDatabase",
];

/// The role reserved for the server.
const SYSTEM: &str = "__system";

const READ: ActionSet = ActionSet::of(&[
    A::ChangeStream,
    A::CollStats,
    A::DbHash,
    A::DbStats,
    A::Find,
    A::KillCursors,
    A::ListCollections,
    A::ListIndexes,
    A::ListSearchIndexes,
    A::PlanCacheRead,
]);

const READ_WRITE: ActionSet = READ.union(ActionSet::of(&[
    A::ConvertToCapped,
    A::CreateCollection,
    A::CreateIndex,
    A::CreateSearchIndexes,
    A::DropCollection,
    A::DropIndex,
    A::DropSearchIndex,
    A::Insert,
    A::Remove,
    A::RenameCollectionSameDB,
    A::Update,
    A::UpdateSearchIndex,
]));

const DB_ADMIN: ActionSet = ActionSet::of(&[
    A::BypassDocumentValidation,
    A::CollMod,
    A::CollStats,
    A::Compact,
    A::ConvertToCapped,
    A::CreateCollection,
    A::CreateIndex,
    A::CreateSearchIndexes,
    A::DbHash,
    A::DbStats,
    A::DropCollection,
    A::DropDatabase,
    A::DropIndex,
    A::DropSearchIndex,
    A::EnableProfiler,
    A::ListCollections,
    A::ListIndexes,
    A::ListSearchIndexes,
    A::PlanCacheIndexFilter,
    A::PlanCacheRead,
    A::PlanCacheWrite,
    A::ReIndex,
    A::RenameCollectionSameDB,
    A::StorageDetails,
    A::UpdateSearchIndex,
    A::Validate,
]);

/// Actions of a database administrator on `system.profile`.
const DB_ADMIN_OF_PROFILE: ActionSet = READ.union(ActionSet::of(&[
    A::ConvertToCapped,
    A::CreateCollection,
    A::DropCollection,
]));

const USER_ADMIN: ActionSet = ActionSet::of(&[
    A::ChangeCustomData,
    A::ChangePassword,
    A::CreateRole,
    A::CreateUser,
    A::DropRole,
    A::DropUser,
    A::GrantRole,
    A::RevokeRole,
    A::SetAuthenticationRestriction,
    A::ViewRole,
    A::ViewUser,
]);

const CLUSTER_MONITOR: ActionSet = ActionSet::of(&[
    A::ConnPoolStats,
    A::GetCmdLineOpts,
    A::GetDefaultRWConcern,
    A::GetLog,
    A::GetParameter,
    A::GetShardMap,
    A::HostInfo,
    A::Inprog,
    A::ListDatabases,
    A::ListSessions,
    A::ListShards,
    A::Netstat,
    A::OperationMetrics,
    A::QueryStatsRead,
    A::QueryStatsReadTransformed,
    A::ReplSetGetConfig,
    A::ReplSetGetStatus,
    A::ServerStatus,
    A::ShardingState,
    A::Top,
    A::UseUUID,
]);

const CLUSTER_MONITOR_OF_DATABASES: ActionSet = ActionSet::of(&[
    A::CollStats,
    A::DbStats,
    A::GetShardVersion,
    A::IndexStats,
    A::ListCollections,
]);

const HOST_MANAGER: ActionSet = ActionSet::of(&[
    A::ApplicationMessage,
    A::AuditConfigure,
    A::CloseAllDatabases,
    A::ConnPoolStats,
    A::DropConnections,
    A::FlushRouterConfig,
    A::Fsync,
    A::InvalidateUserCache,
    A::KillAnyCursor,
    A::KillAnySession,
    A::Killop,
    A::LogRotate,
    A::OidReset,
    A::Resync,
    A::RotateCertificates,
    A::SetParameter,
    A::SetUserWriteBlockMode,
    A::Shutdown,
    A::Touch,
    A::Unlock,
]);

const CLUSTER_MANAGER: ActionSet = ActionSet::of(&[
    A::AddShard,
    A::AppendOplogNote,
    A::ApplicationMessage,
    A::CheckMetadataConsistency,
    A::CleanupOrphaned,
    A::FlushRouterConfig,
    A::GetClusterParameter,
    A::GetDefaultRWConcern,
    A::ListSessions,
    A::ListShards,
    A::RemoveShard,
    A::ReplSetConfigure,
    A::ReplSetGetConfig,
    A::ReplSetGetStatus,
    A::ReplSetStateChange,
    A::Resync,
    A::SetClusterParameter,
    A::SetDefaultRWConcern,
    A::SetFeatureCompatibilityVersion,
]);

/// Actions on collections needed by a backup.
const BACKUP: ActionSet = ActionSet::of(&[
    A::CollStats,
    A::Find,
    A::ListCollections,
    A::ListIndexes,
    A::ListSearchIndexes,
]);

/// Actions on collections needed by a restore.
const RESTORE: ActionSet = ActionSet::of(&[
    A::BypassDocumentValidation,
    A::CollMod,
    A::ConvertToCapped,
    A::CreateCollection,
    A::CreateIndex,
    A::CreateSearchIndexes,
    A::DropCollection,
    A::Insert,
    A::ListCollections,
]);

/// Collections of users and roles.
const USER_COLLECTIONS: [&str; 3] = ["system.users", "system.roles", "system.version"];

/// Collections into which a restore puts users and roles before it merges them.
const TEMPORARY_USER_COLLECTIONS: [&str; 2] = ["tempusers", "temproles"];

/// True if `name` is a built-in role.
pub fn is_builtin(name: &RoleName) -> bool {
    DATABASE_ROLES.contains(&name.role.as_str())
        || (name.db == "admin" && ADMIN_ROLES.contains(&name.role.as_str()))
}

/// True if the role cannot be granted.
pub(super) fn is_reserved(name: &RoleName) -> bool {
    name.role == SYSTEM
}

/// Returns the names of the built-in roles of the database `db`.
pub(super) fn names_in(db: &str) -> Vec<RoleName> {
    let more: &[&str] = if db == "admin" { ADMIN_ROLES } else { &[] };
    let mut all: Vec<_> = DATABASE_ROLES
        .iter()
        .chain(more)
        .map(|role| RoleName::new(role, db))
        .collect();
    all.sort();
    all
}

/// Returns the privileges of a built-in role; `None` for other roles.
pub(super) fn privileges(name: &RoleName) -> Option<Privileges> {
    if !is_builtin(name) {
        return None;
    }
    let mut all = Privileges::default();
    let db = name.db.as_str();
    match name.role.as_str() {
        "read" => read(&mut all, db, READ),
        "readWrite" => read(&mut all, db, READ_WRITE),
        "dbAdmin" => db_admin(&mut all, db),
        "userAdmin" => all.allow(&Resource::database(db), USER_ADMIN),
        "dbOwner" => {
            read(&mut all, db, READ_WRITE);
            db_admin(&mut all, db);
            all.allow(&Resource::database(db), USER_ADMIN);
        }
        "readAnyDatabase" => any_database(&mut all, READ),
        "readWriteAnyDatabase" => any_database(&mut all, READ_WRITE),
        "dbAdminAnyDatabase" => db_admin_any(&mut all),
        "userAdminAnyDatabase" => user_admin_any(&mut all),
        "clusterMonitor" => cluster_monitor(&mut all),
        "hostManager" => host_manager(&mut all),
        "clusterManager" => cluster_manager(&mut all),
        "clusterAdmin" => cluster_admin(&mut all),
        "enableSharding" => {
            let sharding = [A::EnableSharding, A::RefineCollectionShardKey];
            all.allow(&Resource::database(""), ActionSet::of(&sharding));
        }
        "backup" => backup(&mut all),
        "restore" => restore(&mut all),
        "root" => {
            any_database(&mut all, READ_WRITE);
            db_admin_any(&mut all);
            user_admin_any(&mut all);
            cluster_admin(&mut all);
            backup(&mut all);
            restore(&mut all);
        }
        _ => all.allow(&Resource::Any, ActionSet::ALL),
    }
    Some(all)
}

fn read(all: &mut Privileges, db: &str, actions: ActionSet) {
    all.allow(&Resource::database(db), actions);
    all.allow(&Resource::named(db, "system.js"), actions);
    all.allow(&Resource::named(db, "system.views"), READ);
}

fn any_database(all: &mut Privileges, actions: ActionSet) {
    read(all, "", actions);
    let list = ActionSet::of(&[A::ListDatabases]);
    all.allow(&Resource::Cluster, list);
}

fn db_admin(all: &mut Privileges, db: &str) {
    all.allow(&Resource::database(db), DB_ADMIN);
    all.allow(&Resource::named(db, "system.profile"), DB_ADMIN_OF_PROFILE);
    all.allow(&Resource::buckets(db), DB_ADMIN);
}

fn db_admin_any(all: &mut Privileges) {
    db_admin(all, "");
    all.allow(&Resource::Cluster, ActionSet::of(&[A::ListDatabases]));
}

fn user_admin_any(all: &mut Privileges) {
    all.allow(&Resource::database(""), USER_ADMIN);
    for db in ["local", "config", super::EXTERNAL] {
        all.allow(&Resource::database(db), USER_ADMIN);
    }
    for collection in USER_COLLECTIONS {
        all.allow(&Resource::named("admin", collection), READ);
    }
    let on_cluster = [
        A::AuthSchemaUpgrade,
        A::InvalidateUserCache,
        A::ListDatabases,
    ];
    all.allow(&Resource::Cluster, ActionSet::of(&on_cluster));
}

fn cluster_monitor(all: &mut Privileges) {
    all.allow(&Resource::Cluster, CLUSTER_MONITOR);
    for db in ["", "local", "config"] {
        all.allow(&Resource::database(db), CLUSTER_MONITOR_OF_DATABASES);
    }
    for db in ["local", "config"] {
        all.allow(&Resource::database(db), READ);
    }
    all.allow(&Resource::buckets(""), CLUSTER_MONITOR_OF_DATABASES);
    let find = ActionSet::of(&[A::Find]);
    all.allow(&Resource::named("", "system.profile"), find);
}

fn host_manager(all: &mut Privileges) {
    all.allow(&Resource::Cluster, HOST_MANAGER);
    let kill = ActionSet::of(&[A::KillCursors]);
    all.allow(&Resource::database(""), kill);
}

fn cluster_manager(all: &mut Privileges) {
    all.allow(&Resource::Cluster, CLUSTER_MANAGER);
    let sharding = ActionSet::of(&[
        A::EnableSharding,
        A::MoveChunk,
        A::RefineCollectionShardKey,
        A::ReshardCollection,
        A::SplitChunk,
        A::SplitVector,
    ]);
    all.allow(&Resource::database(""), sharding);
    for db in ["local", "config"] {
        all.allow(&Resource::database(db), READ);
    }
}

fn cluster_admin(all: &mut Privileges) {
    cluster_monitor(all);
    host_manager(all);
    cluster_manager(all);
    let drop = ActionSet::of(&[A::DropDatabase]);
    all.allow(&Resource::database(""), drop);
}

fn backup(all: &mut Privileges) {
    let on_cluster = [
        A::AppendOplogNote,
        A::GetParameter,
        A::ListDatabases,
        A::ServerStatus,
    ];
    all.allow(&Resource::Cluster, ActionSet::of(&on_cluster));
    for db in ["", "local", "config"] {
        all.allow(&Resource::database(db), BACKUP);
    }
    all.allow(&Resource::buckets(""), BACKUP);
    for collection in ["system.js", "system.profile", "system.views"] {
        all.allow(&Resource::named("", collection), BACKUP);
    }
    for collection in USER_COLLECTIONS {
        all.allow(&Resource::named("admin", collection), BACKUP);
    }
}

fn restore(all: &mut Privileges) {
    let on_cluster = [A::ForceUUID, A::GetParameter, A::ListDatabases, A::UseUUID];
    all.allow(&Resource::Cluster, ActionSet::of(&on_cluster));
    for db in ["", "config"] {
        all.allow(&Resource::database(db), RESTORE.union(USER_ADMIN));
    }
    all.allow(&Resource::buckets(""), RESTORE);
    for collection in ["system.js", "system.views"] {
        all.allow(&Resource::named("", collection), RESTORE);
    }
    for collection in USER_COLLECTIONS {
        all.allow(&Resource::named("admin", collection), READ_WRITE);
    }
    for collection in TEMPORARY_USER_COLLECTIONS {
        let find = ActionSet::of(&[A::Find]);
        all.allow(&Resource::named("admin", collection), find);
    }
}

#[cfg(test)]
mod tests {
    use super::super::resource::Target;
    use super::*;

    #[test]
    fn roles_are_limited_to_their_database() {
        let role = |role: &str, db: &str| privileges(&RoleName::new(role, db));
        let find = ActionSet::of(&[A::Find]);
        let here = Target::collection("a", "c");
        let there = Target::collection("b", "c");
        let buckets = Target::collection("a", "system.buckets.c");
        for (name, own, others, of_buckets) in [
            ("read", true, false, false),
            ("readWrite", true, false, false),
            ("dbOwner", true, false, false),
            ("dbAdmin", false, false, false),
            ("userAdmin", false, false, false),
        ] {
            let all = role(name, "a").expect("a role");
            assert_eq!(all.allows(&here, find), own, "{name}");
            assert_eq!(all.allows(&there, find), others, "{name}");
            assert_eq!(all.allows(&buckets, find), of_buckets, "{name}");
        }
        assert_eq!(role("root", "a"), None);
        assert_eq!(role("nonsense", "admin"), None);
        let root = role("root", "admin").expect("a role");
        assert!(root.allows(&there, find) && root.allows(&buckets, find));
        assert!(!root.allows(&Target::Everything, find));
        let system = role(SYSTEM, "admin").expect("a role");
        assert!(system.allows(&Target::Everything, ActionSet::ALL));
    }

    #[test]
    fn every_name_has_privileges() {
        for db in ["admin", "a"] {
            for name in names_in(db) {
                assert!(is_builtin(&name));
                assert!(!privileges(&name).expect("a role").is_empty(), "{name}");
            }
        }
    }
}
