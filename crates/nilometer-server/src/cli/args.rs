//! The arguments of the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::backups::ContinuousArgs;
use super::connect::ServerArgs;
use super::replica_set::ReplicaSetArgs;
use super::security::SecurityArgs;
use super::storage::StorageArgs;
use super::transfer::CollectionArgs;

/// A time-series document database that speaks the MongoDB wire protocol.
#[derive(Debug, Parser)]
#[command(name = "nilometer", version = crate::VERSION, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a database directory to MongoDB clients.
    ///
    /// Listens on 127.0.0.1:27017 by default and logs one JSON object per line. The options are those of mongod that
    /// apply here. A write is answered after the log is synced; with `j: false` after it is written.
    #[command(
        after_help = "Connect with:  mongosh mongodb://127.0.0.1:27017\nStop with SIGTERM or SIGINT (Ctrl-C)."
    )]
    Serve(Box<ServeArgs>),
    /// Load public data into a time-series collection, ask three questions, draw the answers.
    Demo(Demo),
    /// Copy a database, served or not, into an empty directory, or into an object store.
    ///
    /// With --uri a running server makes the copy; a directory is then on the server's machine, and a store is reached
    /// from there. With --dbpath this program opens the database, which must not be served. A store gets what no earlier
    /// backup at the URL has, and keeps earlier backups.
    Backup(Backup),
    /// List the backups in an object store.
    Backups(Backups),
    /// Make a database directory from a backup.
    Restore(Restore),
    /// Copy a database into another kind of storage.
    ///
    /// FROM and TO are directories or URLs as of `serve --storage`. TO must be empty or absent. A directory must not be
    /// served meanwhile. A database on object storage may be; the copy has what was stored when it began.
    Copy(CopyArgs),
    /// Merge tables and delete garbage of a database on object storage, beside the server that writes to it.
    ///
    /// The server must be started with --noCompactor. Runs until SIGTERM or SIGINT. One at a time is at work: another one
    /// replaces it, or waits with --standby.
    Compactor(Compactor),
    /// Check every checksum, document, bucket and index of a database that is not served, or every object of the backups
    /// in an object store.
    Verify(Verify),
    /// Copy the readable part of a damaged database into a new one, and list the losses.
    ///
    /// SOURCE is not changed. Uses a temporary copy beside TARGET.
    Salvage(SourceAndTarget),
    /// Describe a database directory that is not served, or one file of it.
    Inspect(InspectArgs),
    /// Insert the lines of a file into a collection of a running server.
    ///
    /// Extended JSON, one document per line; or CSV, whose first line names the fields and may name their types:
    /// `time.date(),bed.string(),moisture.double()`; or the rows of a Parquet file, if the program was built with that
    /// feature.
    Import(Import),
    /// Write a collection of a running server as lines of text.
    Export(Export),
    /// Measure a server, or this machine, with generated data of any size.
    ///
    /// Loads measurements of hosts, reports their size on disk, runs eighteen queries and checks every answer. The same
    /// seed gives the same data. The data is dropped at the end.
    Bench(super::bench::BenchArgs),
    /// Check configuration files.
    #[command(subcommand)]
    Config(Config),
    /// Print the completion script of a shell to the standard output.
    Completion(Completion),
    /// Write the manual pages into a directory.
    Man(Directory),
}

/// Options of `import`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Import {
    /// The file; default: the standard input
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) into: CollectionArgs,
    /// Lines or rows to skip because they were imported before
    #[arg(long, value_name = "LINES", default_value_t = 0)]
    pub(crate) skip: u64,
}

/// Options of `export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Export {
    /// The file; default: the standard output
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) from: CollectionArgs,
    /// Only documents that match, in extended JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) query: Option<String>,
    /// Sort order, in extended JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) sort: Option<String>,
    /// Only these fields, separated by commas; for csv, parquet and arrow optionally with their types, as in time.date()
    #[arg(long, value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// Write the type of every number and date
    #[arg(long)]
    pub(crate) canonical: bool,
}

/// Commands for configuration files.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Config {
    /// Check whether a file is valid, and report what is wrong if not.
    Check(ConfigFile),
}

/// A configuration file.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigFile {
    /// The file
    pub(crate) file: PathBuf,
}

/// Options of `completion`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Completion {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Options of `backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Backup {
    /// Directory for the copy, created if it does not exist, else empty; or the URL of backups: s3://BUCKET/PREFIX,
    /// gs://…, az://… or file:///DIR
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Directory of a database that is not served
    #[arg(long, value_name = "DIR", conflicts_with = "uri")]
    pub(crate) dbpath: Option<PathBuf>,
}

/// Which backups stay in an object store.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct KeepArgs {
    /// Keep this many backups and remove older ones; for URLs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep: Option<u64>,
    /// Keep the backups of this many days, too, and remove older ones; for URLs
    #[arg(long = "keepDays", value_name = "DAYS")]
    pub(crate) keep_days: Option<u32>,
}

/// How the object store of a URL is reached.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreArgs {
    /// Endpoint of s3://, gs:// or az:// storage; default: AWS_ENDPOINT_URL and the like
    #[arg(long = "storageEndpoint", value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Region of s3:// storage; default: AWS_REGION
    #[arg(long = "storageRegion", value_name = "NAME")]
    pub(crate) region: Option<String>,
}

/// Options of `compactor`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Compactor {
    /// The database: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR
    #[arg(long = "storage", value_name = "URL", env = "NILOMETER_STORAGE")]
    pub(crate) storage: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Wait until no other compactor with this option is at work
    #[arg(long)]
    pub(crate) standby: bool,
}

/// Options of `backups`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Backups {
    /// URL of the backups
    pub(crate) url: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Options of `restore`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Restore {
    /// Directory of a copy, or URL of backups
    pub(crate) source: PathBuf,
    /// Target directory; created if it does not exist, else it must be empty
    pub(crate) target: PathBuf,
    /// The last state up to this time, such as 2026-05-01T12:00:00Z; default: the newest; for URLs
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// The backup with this number, without the log behind it; for URLs
    #[arg(long, value_name = "N", conflicts_with = "at")]
    pub(crate) number: Option<u64>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Options of `verify`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Verify {
    /// Directory of a database, or URL of a database, a cluster or backups
    pub(crate) place: PathBuf,
    /// Only this database of the cluster at the URL: config, or a partition such as p0001
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Source and target directories.
#[derive(Args, Clone, Debug)]
pub(crate) struct SourceAndTarget {
    /// Source directory
    pub(crate) source: PathBuf,
    /// Target directory; created if it does not exist, else it must be empty
    pub(crate) target: PathBuf,
}

/// Options of `copy`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CopyArgs {
    /// Directory or URL of the database
    pub(crate) from: String,
    /// Directory or URL of the copy
    pub(crate) to: String,
    /// Database of the cluster at FROM: config, or a partition such as p0001
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<String>,
    /// Endpoint of s3://, gs:// or az:// storage; default: AWS_ENDPOINT_URL and the like
    #[arg(long = "storageEndpoint", value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Region of s3:// storage; default: AWS_REGION
    #[arg(long = "storageRegion", value_name = "NAME")]
    pub(crate) region: Option<String>,
}

/// A directory.
#[derive(Args, Clone, Debug)]
pub(crate) struct Directory {
    /// The directory
    pub(crate) directory: PathBuf,
}

/// Options of `inspect`.
#[derive(Args, Clone, Debug)]
pub(crate) struct InspectArgs {
    /// Directory of the database, or a file of it, or URL of a database or a cluster
    pub(crate) path: PathBuf,
    /// Only this database of the cluster at the URL: config, or a partition such as p0001
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Options of `demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Demo {
    /// Directory of the database; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "./nilometer-data")]
    pub(crate) dbpath: PathBuf,
}

/// Options of `serve`; `None` if not given.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServeArgs {
    /// Directory of the database; created if it does not exist [default: ./nilometer-data]
    #[arg(
        long,
        value_name = "DIR",
        env = "NILOMETER_DBPATH",
        help_heading = "Storage"
    )]
    pub(crate) dbpath: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) storage: StorageArgs,

    #[command(flatten)]
    pub(crate) backup: ContinuousArgs,

    /// Port to listen on; 0 lets the system choose one [default: 27017]
    #[arg(long, env = "NILOMETER_PORT", help_heading = "Network")]
    pub(crate) port: Option<u16>,

    /// Addresses or host names to listen on, separated by commas [default: 127.0.0.1]
    #[arg(
        long = "bind_ip",
        value_name = "HOSTS",
        env = "NILOMETER_BIND_IP",
        help_heading = "Network"
    )]
    pub(crate) bind_ip: Option<String>,

    /// Listen on all IPv4 addresses
    #[arg(
        long = "bind_ip_all",
        conflicts_with = "bind_ip",
        help_heading = "Network"
    )]
    pub(crate) bind_ip_all: bool,

    /// Maximum open connections [default: 20000]
    #[arg(long = "maxConns", value_name = "N", help_heading = "Network")]
    pub(crate) max_conns: Option<u32>,

    /// Port for /healthz, /readyz, /metrics and --webPage over HTTP; off by default
    #[arg(
        long = "httpPort",
        value_name = "PORT",
        env = "NILOMETER_HTTP_PORT",
        help_heading = "Network"
    )]
    pub(crate) http_port: Option<u16>,

    /// Serve the web page on --httpPort, too; it requires a login if --auth is given
    #[arg(long = "webPage", help_heading = "Network")]
    pub(crate) web_page: bool,

    /// Host names of the web page besides addresses and localhost, separated by commas
    #[arg(long = "webHosts", value_name = "HOSTS", help_heading = "Network")]
    pub(crate) web_hosts: Option<String>,

    /// Port for clients of InfluxDB 1.x, which write line protocol over HTTP; 8086 is theirs; off by default
    #[arg(
        long = "influxPort",
        value_name = "PORT",
        env = "NILOMETER_INFLUX_PORT",
        help_heading = "Network"
    )]
    pub(crate) influx_port: Option<u16>,

    /// Accept passwords on --influxPort without TLS from other machines, too
    #[arg(long = "influxPlaintext", help_heading = "Network")]
    pub(crate) influx_plaintext: bool,

    /// Operations slower than this many milliseconds are logged [default: 100]
    #[arg(
        long,
        value_name = "MS",
        allow_negative_numbers = true,
        help_heading = "Logging"
    )]
    pub(crate) slowms: Option<i32>,

    /// Compressors offered to clients, best first, or `disabled` [default: snappy,zstd,zlib]
    #[arg(
        long = "networkMessageCompressors",
        value_name = "LIST",
        help_heading = "Network"
    )]
    pub(crate) compressors: Option<String>,

    #[command(flatten)]
    pub(crate) replica_set: ReplicaSetArgs,

    #[command(flatten)]
    pub(crate) security: SecurityArgs,

    /// Configuration file in mongod's YAML format; the command line overrides it
    #[arg(short = 'f', long, value_name = "FILE", env = "NILOMETER_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Set a server parameter; can be repeated
    #[arg(long = "setParameter", value_name = "NAME=VALUE")]
    pub(crate) set_parameter: Vec<String>,

    /// File to write the process id to
    #[arg(long = "pidfilepath", value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,

    /// Do not log connections
    #[arg(long, help_heading = "Logging")]
    pub(crate) quiet: bool,

    /// Log more; repeat for even more
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Logging")]
    pub(crate) verbose: u8,

    /// Log to this file instead of the standard output
    #[arg(long, value_name = "FILE", help_heading = "Logging")]
    pub(crate) logpath: Option<PathBuf>,

    /// The configuration file sets a log file
    #[arg(skip)]
    pub(crate) logs_to_file: bool,

    /// Append to the log file instead of truncating it
    #[arg(long, help_heading = "Logging")]
    pub(crate) logappend: bool,
}

impl ServeArgs {
    /// Returns these options, completed with those of `file`.
    pub(crate) fn or(self, file: Self) -> Self {
        let directory_given = self.dbpath.is_some();
        let storage_given = self.storage.storage.is_some();
        let bind_ip_given = self.bind_ip.is_some() || self.bind_ip_all;
        // Later settings override earlier ones, so those of the file come first.
        let mut set_parameter = file.set_parameter;
        set_parameter.extend(self.set_parameter);
        Self {
            dbpath: match storage_given {
                true => self.dbpath,
                false => self.dbpath.or(file.dbpath),
            },
            storage: match directory_given {
                true => self.storage,
                false => self.storage.or(file.storage),
            },
            backup: self.backup.or(file.backup),
            port: self.port.or(file.port),
            bind_ip: if bind_ip_given {
                self.bind_ip
            } else {
                file.bind_ip
            },
            bind_ip_all: if bind_ip_given {
                self.bind_ip_all
            } else {
                file.bind_ip_all
            },
            max_conns: self.max_conns.or(file.max_conns),
            http_port: self.http_port.or(file.http_port),
            web_page: self.web_page || file.web_page,
            web_hosts: self.web_hosts.or(file.web_hosts),
            influx_port: self.influx_port.or(file.influx_port),
            influx_plaintext: self.influx_plaintext || file.influx_plaintext,
            slowms: self.slowms.or(file.slowms),
            compressors: self.compressors.or(file.compressors),
            replica_set: self.replica_set.or(file.replica_set),
            security: self.security.or(file.security),
            config: self.config,
            set_parameter,
            pid_file: self.pid_file.or(file.pid_file),
            quiet: self.quiet || file.quiet,
            verbose: self.verbose.max(file.verbose),
            logpath: self.logpath.or(file.logpath),
            logs_to_file: self.logs_to_file || file.logs_to_file,
            logappend: self.logappend || file.logappend,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let given = |line: &[&str]| match Cli::try_parse_from(line).unwrap().command {
            Command::Serve(given) => *given,
            other => panic!("{other:?}"),
        };
        let line = given(&["nilometer", "serve", "--port", "1", "--bind_ip_all"]);
        let file = ServeArgs {
            port: Some(2),
            bind_ip: Some("::1".into()),
            dbpath: Some("/x".into()),
            ..ServeArgs::default()
        };
        let both = line.or(file);
        assert_eq!(both.port, Some(1));
        assert_eq!((both.bind_ip, both.bind_ip_all), (None, true));
        assert_eq!(both.dbpath, Some("/x".into()));
        let url = |url: &str| ServeArgs {
            storage: StorageArgs {
                storage: Some(url.into()),
                cache_path: Some("/cache".into()),
                ..StorageArgs::default()
            },
            ..ServeArgs::default()
        };
        let directory = || ServeArgs {
            dbpath: Some("/x".into()),
            ..ServeArgs::default()
        };
        let both = directory().or(url("s3://a/b"));
        assert_eq!(
            (both.storage.storage, both.storage.cache_path),
            (None, None)
        );
        let both = url("s3://a/b").or(directory());
        assert_eq!(
            (both.dbpath, both.storage.storage),
            (None, Some("s3://a/b".into()))
        );
    }
}
