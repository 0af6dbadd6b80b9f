//! Commands about replica sets. A server without the name of a set refuses them, so that tools recognize it.
//!
//! The members share one database on object storage, so none of them copies from another: a secondary reads what the
//! primary has stored. Who is a member follows from who is there, so nothing configures or initiates a set.

use std::time::Duration;

use nilometer_bson::{Array, Document, DocumentBuilder, ObjectId, Timestamp, Value, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::services::{MemberRole, ReplicaSet, ReplicaSetState, StepDown};

/// The version of the configuration. It does not change.
const CONFIG_VERSION: i32 = 1;

/// The interval of heartbeats, in ms.
const HEARTBEAT_MS: i64 = 1000;

/// The silence after which another member takes over, in ms.
const ELECTION_TIMEOUT_MS: i64 = 5000;

/// The defaults of `replSetStepDown`, in seconds.
const STEP_DOWN_SECS: i64 = 60;
const CATCH_UP_SECS: i64 = 10;

/// Interval at which a step-down looks whether a member can take over.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// The longest time of `replSetStepDown`, in seconds.
const STEP_DOWN_SECS_MAX: i64 = 10 * 365 * 24 * 60 * 60;

pub(crate) const STATUS: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "replSetGetStatus",
        "Returns the members of the replica set and their states.",
        Authorization::OnCluster(&[Action::ReplSetGetStatus]),
        OnRouter::Refused,
        status,
    )
};

pub(crate) const CONFIG: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "replSetGetConfig",
        "Returns the members of the replica set as a configuration.",
        Authorization::OnCluster(&[Action::ReplSetGetConfig]),
        OnRouter::Refused,
        config,
    )
};

pub(crate) const INITIATE: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "replSetInitiate",
        "Refused: options of the server make it a member of a replica set.",
        Authorization::OnCluster(&[Action::ReplSetConfigure]),
        OnRouter::Refused,
        refuse_to_initiate,
    )
};

pub(crate) const STEP_DOWN: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&["secondaryCatchUpPeriodSecs", "force"]),
    ..CommandSpec::new(
        "replSetStepDown",
        "Makes the primary a secondary, so that another member becomes primary.",
        Authorization::OnCluster(&[Action::ReplSetStateChange]),
        OnRouter::Refused,
        step_down,
    )
};

fn refuse_to_initiate(
    database: &Database,
    _: &mut CommandContext<'_>,
    _: &Request,
) -> Result<Document> {
    Err(match database.services().replica_set {
        None => Error::new(
            ErrorCode::NoReplicationEnabled,
            "This node was not started with replication enabled.",
        ),
        Some(_) => Error::new(ErrorCode::AlreadyInitialized, "already initialized"),
    })
}

fn set_of(database: &Database) -> Result<&ReplicaSet> {
    let set = database.services().replica_set.as_deref();
    set.ok_or_else(|| {
        Error::new(
            ErrorCode::NoReplicationEnabled,
            "not running with --replSet",
        )
    })
}

/// Returns the id of the election of a term: those of later terms are larger.
fn election_id(term: u64) -> ObjectId {
    let mut id = [0; 12];
    let (head, tail) = id.split_at_mut(4);
    head.copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF]);
    tail.copy_from_slice(&term.to_be_bytes());
    ObjectId(id)
}

fn timestamp(ms: i64) -> Timestamp {
    let seconds = u32::try_from(ms.div_euclid(1000)).unwrap_or(0);
    Timestamp {
        seconds,
        increment: u32::from(seconds > 0),
    }
}

/// Returns `{ts, t}` of the last write that this server shows.
fn operation_time(state: &ReplicaSetState) -> Document {
    time_of(state.last_write_ms, state.term)
}

fn time_of(ms: i64, term: u64) -> Document {
    doc! {
        "ts": timestamp(ms),
        "t": i64::try_from(term).unwrap_or(i64::MAX),
    }
}

fn number_of(role: MemberRole) -> (i32, &'static str) {
    match role {
        MemberRole::Primary => (1, "PRIMARY"),
        MemberRole::Secondary => (2, "SECONDARY"),
        MemberRole::Recovering => (3, "RECOVERING"),
    }
}

/// A member, in the order of addresses.
struct Member<'s> {
    host: &'s str,
    role: MemberRole,
    is_passive: bool,
    last_write_ms: i64,
    /// When it was seen last; `None` for this server.
    seen_ms: Option<i64>,
}

fn members<'s>(set: &'s ReplicaSet, state: &'s ReplicaSetState) -> Vec<Member<'s>> {
    let own = Member {
        host: set.me(),
        role: state.role,
        is_passive: state.is_passive,
        last_write_ms: state.last_write_ms,
        seen_ms: None,
    };
    let others = state.others.iter().map(|other| Member {
        host: &other.host,
        role: other.role,
        is_passive: other.is_passive,
        last_write_ms: other.last_write_ms,
        seen_ms: Some(other.seen_ms),
    });
    let mut members: Vec<_> = std::iter::once(own).chain(others).collect();
    members.sort_by_key(|member| member.host);
    members
}

fn status(database: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let set = set_of(database)?;
    let state = set.state();
    let members = members(set, &state);
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let voting = members.iter().filter(|member| !member.is_passive).count();
    let term = i64::try_from(state.term).unwrap_or(i64::MAX);
    let (number, _) = number_of(state.role);
    let mut out = DocumentBuilder::new();
    out.append("set", set.name())
        .append("date", Value::DateTime(context.operation.now_ms))
        .append("myState", number)
        .append("term", term)
        .append("heartbeatIntervalMillis", HEARTBEAT_MS)
        // A write is where all members read before it is acknowledged.
        .append("majorityVoteCount", 1)
        .append("writeMajorityCount", 1)
        .append("votingMembersCount", count(voting))
        .append("writableVotingMembersCount", count(voting));
    let time = operation_time(&state);
    let date = Value::DateTime(state.last_write_ms);
    out.append(
        "optimes",
        doc! {
            "lastCommittedOpTime": time.clone(),
            "lastCommittedWallTime": date.clone(),
            "appliedOpTime": time.clone(),
            "durableOpTime": time,
            "lastAppliedWallTime": date.clone(),
            "lastDurableWallTime": date,
        },
    );
    let uptime = i64::try_from(database.services().uptime().as_secs()).unwrap_or(i64::MAX);
    let newest = members.iter().map(|member| member.last_write_ms).max();
    let shown = members.iter().enumerate().map(|(at, member)| {
        let (number, name) = number_of(member.role);
        let mut out = DocumentBuilder::new();
        out.append("_id", count(at))
            .append("name", member.host)
            .append("health", 1.0)
            .append("state", number)
            .append("stateStr", name)
            .append("uptime", uptime)
            .append("optime", time_of(member.last_write_ms, state.term))
            .append("optimeDate", Value::DateTime(member.last_write_ms))
            .append("lagMillis", newest.unwrap_or(0) - member.last_write_ms);
        if let Some(seen_ms) = member.seen_ms {
            out.append("lastHeartbeat", Value::DateTime(seen_ms));
        }
        if member.role == MemberRole::Primary && member.seen_ms.is_none() {
            out.append("electionTime", timestamp(state.elected_ms))
                .append("electionDate", Value::DateTime(state.elected_ms));
        }
        out.append("configVersion", CONFIG_VERSION)
            .append("configTerm", term);
        if member.seen_ms.is_none() {
            out.append("self", true);
        }
        Value::Document(out.finish())
    });
    out.append("members", shown.collect::<Array>());
    Ok(out.finish())
}

/// Returns `repl` of `serverStatus`; missing without a set.
pub(crate) fn status_section(database: &Database) -> Value {
    let Ok(set) = set_of(database) else {
        return Value::Missing;
    };
    let state = set.state();
    let mut out = DocumentBuilder::new();
    let is_primary = state.role == MemberRole::Primary;
    describe(&mut out, set, &state);
    out.append("isWritablePrimary", is_primary);
    if state.role == MemberRole::Secondary {
        let primary = state
            .others
            .iter()
            .find(|other| other.role == MemberRole::Primary);
        let lag = primary.map(|primary| (primary.last_write_ms - state.last_write_ms).max(0));
        out.append("readIntervalMillis", state.read_interval_ms)
            .append("lagMillis", lag);
    }
    out.finish().into()
}

/// Appends the fields of a member of a replica set, as `hello` has them.
pub(crate) fn describe(out: &mut DocumentBuilder, set: &ReplicaSet, state: &ReplicaSetState) {
    let list = |hosts: &[String]| hosts.iter().map(Value::from).collect::<Array>();
    out.append("setName", set.name())
        .append("setVersion", CONFIG_VERSION)
        .append("secondary", state.role == MemberRole::Secondary)
        .append("hosts", list(&state.hosts));
    if !state.passives.is_empty() {
        out.append("passives", list(&state.passives));
    }
    if state.is_passive {
        out.append("passive", true);
    }
    out.append("primary", state.primary.clone())
        .append("me", set.me());
    if state.role == MemberRole::Primary {
        out.append("electionId", election_id(state.term));
    }
    if state.role != MemberRole::Recovering {
        let time = operation_time(state);
        let date = Value::DateTime(state.last_write_ms);
        out.append(
            "lastWrite",
            doc! {
                "opTime": time.clone(),
                "lastWriteDate": date.clone(),
                "majorityOpTime": time,
                "majorityWriteDate": date,
            },
        );
    }
}

fn config(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let set = set_of(database)?;
    let state = set.state();
    let members = members(set, &state);
    let members = members.iter().enumerate().map(|(at, member)| {
        let weight = i32::from(!member.is_passive);
        Value::Document(doc! {
            "_id": i32::try_from(at).unwrap_or(i32::MAX),
            "host": member.host,
            "arbiterOnly": false,
            "buildIndexes": true,
            "hidden": false,
            "priority": weight,
            "tags": doc! {},
            "secondaryDelaySecs": 0_i64,
            "votes": weight,
        })
    });
    Ok(doc! {"config": doc! {
        "_id": set.name(),
        "version": CONFIG_VERSION,
        "term": i64::try_from(state.term).unwrap_or(i64::MAX),
        "members": members.collect::<Array>(),
        "protocolVersion": 1_i64,
        "writeConcernMajorityJournalDefault": true,
        "settings": doc! {
            "chainingAllowed": false,
            "heartbeatIntervalMillis": HEARTBEAT_MS,
            "electionTimeoutMillis": ELECTION_TIMEOUT_MS,
        },
    }})
}

fn step_down(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("replSetStepDown", request.body.as_ref());
    let set = set_of(database)?;
    let force = args.lenient_boolean("force")?.unwrap_or(false);
    let time = match args.integer("replSetStepDown")? {
        None | Some(0) => STEP_DOWN_SECS,
        Some(given) => given,
    };
    if !(1..=STEP_DOWN_SECS_MAX).contains(&time) {
        return Err(Error::bad_value(
            "stepdown period must be a positive integer",
        ));
    }
    let catch_up = args.integer("secondaryCatchUpPeriodSecs")?;
    if catch_up.is_some_and(|catch_up| catch_up < 0) {
        return Err(Error::bad_value(
            "secondaryCatchUpPeriodSecs period must be a positive or absent",
        ));
    }
    if catch_up.is_some_and(|catch_up| catch_up > time) {
        return Err(Error::bad_value(
            "stepdown period must be longer than secondaryCatchUpPeriodSecs",
        ));
    }
    // As in MongoDB, the default is none if the step-down is forced.
    let default = if force { 0 } else { CATCH_UP_SECS.min(time) };
    let Some(step_down) = set.step_down.get() else {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "replSetStepDown: this database is not served by a process of its own",
        ));
    };
    let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(0));
    let clock = context.operation.clock();
    let catch_up = seconds(catch_up.unwrap_or(default));
    let until = clock.monotonic().saturating_add(catch_up);
    loop {
        let is_last = clock.monotonic() >= until;
        let outcome = step_down(StepDown {
            time: seconds(time),
            force: force && is_last,
        });
        match outcome {
            Err(error) if error.code == ErrorCode::ExceededTimeLimit && !is_last => {}
            outcome => return outcome.map(|()| Document::new()),
        }
        context.operation.check_interrupt()?;
        std::thread::sleep(TRY_EVERY);
    }
}
