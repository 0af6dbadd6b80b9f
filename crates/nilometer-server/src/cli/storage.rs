//! Options for the place of the database: a directory, or object storage.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::parser::ValueSource;
use nilometer_bson::Value;

use super::Failure;
use super::args::ServeArgs;
use super::config::boolean;
use super::object_storage::ObjectStorage;

/// The default directory of the database.
const DEFAULT_DATA_DIRECTORY: &str = "./nilometer-data";

/// Least size of the cache on a local disk: a few parts of objects.
const CACHE_GB_MIN: f64 = 0.1;

/// Most of it.
const CACHE_GB_MAX: f64 = 1_000_000.0;

const GIB: f64 = 1_073_741_824.0;

/// Most partitions of a cluster, as its description allows.
const PARTITIONS_MAX: u32 = 2000;

/// Longest flush interval: a synced write waits for it.
const FLUSH_INTERVAL_MS_MAX: u32 = 60_000;

/// Interval at which a server that does not write looks for newer contents, and its bounds.
const READ_INTERVAL_MS: u32 = 1000;
const READ_INTERVAL_MS_MIN: u32 = 50;
const READ_INTERVAL_MS_MAX: u32 = 600_000;

/// The options as given.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StorageArgs {
    /// Object storage instead of a directory: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR
    #[arg(
        long = "storage",
        value_name = "URL",
        env = "NILOMETER_STORAGE",
        help_heading = "Storage"
    )]
    pub(crate) storage: Option<String>,

    /// Endpoint of s3://, gs:// or az:// storage; default: AWS_ENDPOINT_URL and the like
    #[arg(long = "storageEndpoint", value_name = "URL", help_heading = "Storage")]
    pub(crate) endpoint: Option<String>,

    /// Region of s3:// storage; default: AWS_REGION
    #[arg(long = "storageRegion", value_name = "NAME", help_heading = "Storage")]
    pub(crate) region: Option<String>,

    /// Directory for a cache of object storage, on a fast disk; its contents may be lost
    #[arg(long = "cachePath", value_name = "DIR", help_heading = "Storage")]
    pub(crate) cache_path: Option<PathBuf>,

    /// Size of that cache [default: 16]
    #[arg(long = "cacheSizeGB", value_name = "GB", help_heading = "Storage")]
    pub(crate) cache_size_gb: Option<f64>,

    /// Longest time before a write to object storage is sent; fewer requests, later answers [default: 20]
    #[arg(long = "flushIntervalMS", value_name = "MS", help_heading = "Storage")]
    pub(crate) flush_interval_ms: Option<u32>,

    /// Read while another server with this option writes, and take over when it ends
    #[arg(long = "standby", help_heading = "Storage")]
    pub(crate) standby: bool,

    /// Leave merging tables and deleting garbage to `nilometer compactor`
    #[arg(long = "noCompactor", help_heading = "Storage")]
    pub(crate) no_compactor: bool,

    /// Read what other servers write to object storage, and never write
    #[arg(long = "readOnly", help_heading = "Storage")]
    pub(crate) read_only: bool,

    /// Be a node of a cluster: route, and write some of its partitions
    #[arg(long = "cluster", help_heading = "Cluster")]
    pub(crate) cluster: bool,

    /// Partitions of a new cluster, 1 to 64 [default: 4]
    #[arg(long = "partitions", value_name = "N", help_heading = "Cluster")]
    pub(crate) partitions: Option<u32>,

    /// Only route
    #[arg(long = "noPartitions", help_heading = "Cluster")]
    pub(crate) no_partitions: bool,

    /// Longest time after which a server that reads sees a write of another [default: 1000]
    #[arg(long = "readIntervalMS", value_name = "MS", help_heading = "Storage")]
    pub(crate) read_interval_ms: Option<u32>,
}

/// The place of the database.
#[derive(Debug)]
pub enum Storage {
    /// A directory.
    Directory(PathBuf),
    /// Object storage.
    Objects(ObjectStorage),
}

impl fmt::Display for Storage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(formatter),
            Self::Objects(storage) => storage.fmt(formatter),
        }
    }
}

/// How object storage is used, where it is given.
#[derive(Debug, Default)]
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "only object storage reads them")
)]
pub(super) struct ObjectStorageOptions {
    pub(super) cache_path: Option<PathBuf>,
    pub(super) cache_bytes: Option<u64>,
    pub(super) flush_interval: Option<Duration>,
    /// The server reads while another one writes, and takes over.
    pub(super) standby: bool,
    /// Another process merges.
    pub(super) no_compactor: bool,
    /// The server never writes.
    pub(super) read_only: bool,
    /// Interval at which a server that does not write looks for newer contents.
    pub(super) read_interval: Duration,
    /// The server is a node of a cluster.
    pub(super) cluster: Option<ClusterOptions>,
}

/// How a node takes part in a cluster.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "only object storage reads them")
)]
pub(super) struct ClusterOptions {
    /// The number of partitions, if it is given.
    pub(super) partitions: Option<u32>,
    /// False if the node only routes.
    pub(super) owns: bool,
}

impl StorageArgs {
    /// Returns these options, completed with those of `file`.
    pub(super) fn or(self, file: Self) -> Self {
        Self {
            storage: self.storage.or(file.storage),
            endpoint: self.endpoint.or(file.endpoint),
            region: self.region.or(file.region),
            cache_path: self.cache_path.or(file.cache_path),
            cache_size_gb: self.cache_size_gb.or(file.cache_size_gb),
            flush_interval_ms: self.flush_interval_ms.or(file.flush_interval_ms),
            standby: self.standby || file.standby,
            no_compactor: self.no_compactor || file.no_compactor,
            read_only: self.read_only || file.read_only,
            read_interval_ms: self.read_interval_ms.or(file.read_interval_ms),
            cluster: self.cluster || file.cluster,
            partitions: self.partitions.or(file.partitions),
            no_partitions: self.no_partitions || file.no_partitions,
        }
    }

    /// Sets the option at `path` of the configuration file. False if it is not one of these options.
    pub(super) fn set(&mut self, path: &str, text: &str) -> Result<bool, Failure> {
        let wrong = || Failure::Options(format!("{path} must be a number, not {text}"));
        match path {
            "storage.url" => self.storage = Some(text.to_owned()),
            "storage.endpoint" => self.endpoint = Some(text.to_owned()),
            "storage.region" => self.region = Some(text.to_owned()),
            "storage.cachePath" => self.cache_path = Some(text.into()),
            "storage.cacheSizeGB" => {
                self.cache_size_gb = Some(text.parse().map_err(|_| wrong())?);
            }
            "storage.flushIntervalMS" => {
                self.flush_interval_ms = Some(text.parse().map_err(|_| wrong())?);
            }
            "storage.standby" => self.standby = boolean(path, text)?,
            "storage.noCompactor" => self.no_compactor = boolean(path, text)?,
            "storage.readOnly" => self.read_only = boolean(path, text)?,
            "storage.cluster" => self.cluster = boolean(path, text)?,
            "storage.partitions" => {
                self.partitions = Some(text.parse().map_err(|_| wrong())?);
            }
            "storage.noPartitions" => self.no_partitions = boolean(path, text)?,
            "storage.readIntervalMS" => {
                self.read_interval_ms = Some(text.parse().map_err(|_| wrong())?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the options and fills in defaults.
    pub(super) fn resolve(&self, dbpath: Option<&PathBuf>) -> Result<Storage, Failure> {
        let refused = |text: String| Err(Failure::Options(text));
        let Some(url) = &self.storage else {
            let needing = [
                ("--storageEndpoint", self.endpoint.is_some()),
                ("--storageRegion", self.region.is_some()),
                ("--cachePath", self.cache_path.is_some()),
                ("--cacheSizeGB", self.cache_size_gb.is_some()),
                ("--flushIntervalMS", self.flush_interval_ms.is_some()),
                ("--standby", self.standby),
                ("--noCompactor", self.no_compactor),
                ("--readOnly", self.read_only),
                ("--readIntervalMS", self.read_interval_ms.is_some()),
                ("--cluster", self.cluster),
                ("--partitions", self.partitions.is_some()),
                ("--noPartitions", self.no_partitions),
            ];
            if let Some((name, _)) = needing.iter().find(|(_, is_given)| *is_given) {
                return refused(format!("{name} needs --storage"));
            }
            let default = || PathBuf::from(DEFAULT_DATA_DIRECTORY);
            return Ok(Storage::Directory(dbpath.cloned().unwrap_or_else(default)));
        };
        if dbpath.is_some() {
            return refused("--storage and --dbpath name two places for one database".to_owned());
        }
        if self.cache_size_gb.is_some() && self.cache_path.is_none() {
            return refused("--cacheSizeGB needs --cachePath".to_owned());
        }
        let cache_bytes = match self.cache_size_gb {
            None => None,
            // False for NaN.
            Some(gb) if (CACHE_GB_MIN..=CACHE_GB_MAX).contains(&gb) => Some((gb * GIB) as u64),
            Some(gb) => {
                return refused(format!(
                    "--cacheSizeGB must be between {CACHE_GB_MIN} and {CACHE_GB_MAX}, not {gb}"
                ));
            }
        };
        let flush_interval = match self.flush_interval_ms {
            None => None,
            Some(ms) if (1..=FLUSH_INTERVAL_MS_MAX).contains(&ms) => {
                Some(Duration::from_millis(ms.into()))
            }
            Some(ms) => {
                return refused(format!(
                    "--flushIntervalMS must be between 1 and {FLUSH_INTERVAL_MS_MAX}, not {ms}"
                ));
            }
        };
        let options = ObjectStorageOptions {
            read_interval: self.read_interval()?,
            cluster: self.cluster()?,
            cache_path: self.cache_path.clone(),
            cache_bytes,
            flush_interval,
            standby: self.standby,
            no_compactor: self.no_compactor,
            read_only: self.read_only,
        };
        let storage = ObjectStorage::new(
            url,
            self.endpoint.as_deref(),
            self.region.as_deref(),
            options,
        )?;
        Ok(Storage::Objects(storage))
    }

    /// Checks how the server takes part in a cluster.
    fn cluster(&self) -> Result<Option<ClusterOptions>, Failure> {
        let refused = |text: &str| Err(Failure::Options(text.to_owned()));
        if !self.cluster {
            return match self.partitions.is_some() || self.no_partitions {
                true => refused("--partitions and --noPartitions need --cluster"),
                false => Ok(None),
            };
        }
        if self.standby || self.read_only {
            return refused(
                "the nodes of a --cluster take over from each other: it excludes --standby and --readOnly",
            );
        }
        if self.no_compactor {
            return refused(
                "the nodes of a --cluster merge their own partitions: it excludes --noCompactor",
            );
        }
        if self
            .partitions
            .is_some_and(|n| !(1..=PARTITIONS_MAX).contains(&n))
        {
            return Err(Failure::Options(format!(
                "--partitions must be between 1 and {PARTITIONS_MAX}"
            )));
        }
        Ok(Some(ClusterOptions {
            partitions: self.partitions,
            owns: !self.no_partitions,
        }))
    }

    /// Checks how the server takes part beside others. Returns the interval of its reads.
    fn read_interval(&self) -> Result<Duration, Failure> {
        let refused = |text: String| Err(Failure::Options(text));
        if self.standby && self.read_only {
            return refused("--readOnly never takes over: it excludes --standby".to_owned());
        }
        if self.read_interval_ms.is_some() && !self.standby && !self.read_only {
            return refused("--readIntervalMS needs --standby or --readOnly".to_owned());
        }
        let ms = self.read_interval_ms.unwrap_or(READ_INTERVAL_MS);
        match (READ_INTERVAL_MS_MIN..=READ_INTERVAL_MS_MAX).contains(&ms) {
            true => Ok(Duration::from_millis(ms.into())),
            false => refused(format!(
                "--readIntervalMS must be between {READ_INTERVAL_MS_MIN} and {READ_INTERVAL_MS_MAX}, not {ms}"
            )),
        }
    }

    /// Returns the given options of the section `storage`.
    pub(super) fn parsed(&self) -> [(&'static str, Option<Value>); 13] {
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        let cache_path = self.cache_path.as_ref();
        let cache_path = cache_path.map(|path| Value::from(path.display().to_string()));
        let flush_interval = self.flush_interval_ms.map(|ms| Value::Int64(ms.into()));
        [
            ("url", text(&self.storage)),
            ("endpoint", text(&self.endpoint)),
            ("region", text(&self.region)),
            ("cachePath", cache_path),
            ("cacheSizeGB", self.cache_size_gb.map(Value::Double)),
            ("flushIntervalMS", flush_interval),
            ("standby", self.standby.then_some(Value::Bool(true))),
            (
                "noCompactor",
                self.no_compactor.then_some(Value::Bool(true)),
            ),
            ("readOnly", self.read_only.then_some(Value::Bool(true))),
            ("cluster", self.cluster.then_some(Value::Bool(true))),
            (
                "partitions",
                self.partitions.map(|n| Value::Int64(n.into())),
            ),
            (
                "noPartitions",
                self.no_partitions.then_some(Value::Bool(true)),
            ),
            (
                "readIntervalMS",
                self.read_interval_ms.map(|ms| Value::Int64(ms.into())),
            ),
        ]
    }
}

/// Drops the place of the database that the environment names if the command line names another: so an image can have a
/// default.
pub(super) fn prefer_command_line(given: &mut ServeArgs, matches: &clap::ArgMatches) {
    let from = |name: &str| matches.value_source(name);
    let (line, environment) = (
        Some(ValueSource::CommandLine),
        Some(ValueSource::EnvVariable),
    );
    if from("storage") == line && from("dbpath") == environment {
        given.dbpath = None;
    }
    if from("dbpath") == line && from("storage") == environment {
        given.storage.storage = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(given: &StorageArgs, dbpath: Option<&str>) -> String {
        let dbpath = dbpath.map(PathBuf::from);
        let resolved = given.resolve(dbpath.as_ref());
        resolved.expect_err("refused").to_string()
    }

    fn given() -> StorageArgs {
        StorageArgs {
            storage: Some("s3://garden/soil".to_owned()),
            ..StorageArgs::default()
        }
    }

    #[test]
    fn a_directory_is_the_default() {
        let resolved = StorageArgs::default().resolve(None).expect("a place");
        assert_eq!(resolved.to_string(), DEFAULT_DATA_DIRECTORY);
        let given = PathBuf::from("/x");
        let resolved = StorageArgs::default().resolve(Some(&given));
        assert_eq!(resolved.expect("a place").to_string(), "/x");
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        assert!(refusal(&given(), Some("/x")).contains("--dbpath"));
        let alone = StorageArgs {
            cache_path: Some("/c".into()),
            ..StorageArgs::default()
        };
        assert_eq!(refusal(&alone, None), "--cachePath needs --storage");
        let pathless = StorageArgs {
            cache_size_gb: Some(1.0),
            ..given()
        };
        assert_eq!(refusal(&pathless, None), "--cacheSizeGB needs --cachePath");
        for gb in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let sized = StorageArgs {
                cache_path: Some("/c".into()),
                cache_size_gb: Some(gb),
                ..given()
            };
            assert!(
                refusal(&sized, None).starts_with("--cacheSizeGB must be"),
                "{gb}"
            );
        }
        for (given, text) in [
            (
                StorageArgs {
                    standby: true,
                    read_only: true,
                    ..given()
                },
                "--readOnly never takes over",
            ),
            (
                StorageArgs {
                    read_interval_ms: Some(100),
                    ..given()
                },
                "--readIntervalMS needs",
            ),
            (
                StorageArgs {
                    standby: true,
                    read_interval_ms: Some(1),
                    ..given()
                },
                "--readIntervalMS must be",
            ),
        ] {
            assert!(refusal(&given, None).starts_with(text), "{text}");
        }
        for ms in [0, 60_001] {
            let slow = StorageArgs {
                flush_interval_ms: Some(ms),
                ..given()
            };
            assert!(
                refusal(&slow, None).starts_with("--flushIntervalMS must be"),
                "{ms}"
            );
        }
    }

    #[test]
    fn the_file_has_its_keys() {
        let text = "storage:\n  url: s3://a/b\n  cachePath: /c\n  cacheSizeGB: 0.5\n  flushIntervalMS: 7\n";
        let given = crate::cli::config::parse(text).expect("valid").storage;
        assert_eq!(given.storage.as_deref(), Some("s3://a/b"));
        assert_eq!(given.cache_path, Some("/c".into()));
        assert_eq!(
            (given.cache_size_gb, given.flush_interval_ms),
            (Some(0.5), Some(7))
        );
        let names = given.parsed().map(|(name, value)| value.map(|_| name));
        let names = names.into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(
            names,
            ["url", "cachePath", "cacheSizeGB", "flushIntervalMS"]
        );
        assert!(crate::cli::config::parse("storage:\n  flushIntervalMS: -1\n").is_err());
    }

    #[cfg(not(feature = "cluster"))]
    #[test]
    fn a_program_without_object_storage_says_how_to_build_it() {
        let refusal = refusal(&given(), None);
        assert!(refusal.contains("--features cluster"), "{refusal}");
    }
}
