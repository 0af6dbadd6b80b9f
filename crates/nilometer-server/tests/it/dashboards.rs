//! The files of `packaging/grafana`: sound JSON, and queries that the server answers with data, over what Telegraf writes. And the
//! commands of `docs/first_dashboard.md`.
//!
//! The lines of the machine are those of Telegraf 1.37. Those of the server's own figures are made here from `/metrics` of the
//! running server, as Telegraf's input `prometheus` does for OpenMetrics with `metric_version = 2`, so that a renamed metric fails
//! the test.

#![expect(clippy::print_stdout, reason = "a test that cannot be run says so")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::http::{exchange, free_port};
use crate::server::Server;

/// Lines that Telegraf sends for one host; `TIME` stands for nanoseconds.
const MACHINE: &str = "\
cpu,cpu=cpu0,host=green usage_user=12.5,usage_system=3.1,usage_idle=80.2,usage_iowait=1.5,usage_steal=0 TIME
cpu,cpu=cpu-total,host=green usage_user=10.5,usage_system=2.9,usage_idle=84.1,usage_iowait=1.1,usage_steal=0 TIME
mem,host=green total=16384i,used=4096i,used_percent=25 TIME
system,host=green load1=0.42,load5=0.36,load15=0.3,n_cpus=2i TIME
";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana")
}

/// A server with the ports for metrics and for InfluxDB's clients.
struct Monitored {
    _server: Server,
    http_port: u16,
    influx_port: u16,
}

impl Monitored {
    fn start() -> Self {
        let (http_port, influx_port) = (free_port(), free_port());
        let (http, influx) = (http_port.to_string(), influx_port.to_string());
        Self {
            _server: Server::start_with(&["--httpPort", &http, "--influxPort", &influx]),
            http_port,
            influx_port,
        }
    }

    /// Sends a request; returns the body of the answer, which is complete when the connection is closed.
    fn send(port: u16, request: &str, expected: &str) -> String {
        let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        let answer = exchange(port, request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        assert!(
            head.starts_with(&format!("HTTP/1.1 {expected}")),
            "{request}\n{answer}"
        );
        body.to_owned()
    }

    fn write(&self, lines: &str) {
        let length = lines.len();
        let request = format!(
            "POST /write?db=telegraf HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{lines}"
        );
        Self::send(self.influx_port, &request, "204");
    }

    fn query(&self, text: &str) -> Value {
        let escaped: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let request =
            format!("GET /query?db=telegraf&epoch=ms&q={escaped} HTTP/1.1\r\nHost: x\r\n\r\n");
        let body = Self::send(self.influx_port, &request, "200");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
    }

    /// Writes the measurements of a minute: derivatives need two values.
    fn write_samples(&self, now_ms: i64) {
        for seconds in [40, 20, 0] {
            let time_ns = i128::from(now_ms - seconds * 1000) * 1_000_000;
            self.write(&MACHINE.replace("TIME", &time_ns.to_string()));
            self.write(&self.figures(time_ns));
        }
    }

    /// Returns the server's figures as lines.
    fn figures(&self, time_ns: i128) -> String {
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        let body = Self::send(self.http_port, request, "200");
        let samples = body.lines().filter(|line| !line.starts_with('#'));
        let lines = samples.map(|sample| {
            let (name, value) = sample.rsplit_once(' ').expect("a sample");
            let (name, labels) = name.split_once('{').unwrap_or((name, "}"));
            // Telegraf takes the name of the family.
            let name = name.strip_suffix("_total").unwrap_or(name);
            let labels = labels.trim_end_matches('}').replace('"', "");
            let labels = if labels.is_empty() {
                labels
            } else {
                format!(",{labels}")
            };
            format!(
                "openmetric,host=green{labels},url=http://127.0.0.1:28080/metrics {name}={value} {time_ns}\n"
            )
        });
        lines.collect()
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.expect("a time").as_millis()).expect("a time of today")
}

fn dashboards() -> Vec<(String, Value)> {
    let names = ["cpu.json", "nilometer.json"];
    let all = names.map(|name| {
        let path = folder().join("dashboards").join(name);
        let text = std::fs::read_to_string(path).expect("a dashboard");
        let json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name.to_owned(), json)
    });
    all.to_vec()
}

/// Returns a query with the variables of Grafana replaced, as Grafana does for *All* hosts and servers.
fn replaced(query: &str, now_ms: i64) -> String {
    let from = now_ms - 15 * 60_000;
    query
        .replace(
            "$timeFilter",
            &format!("time >= {from}ms and time <= {now_ms}ms"),
        )
        .replace("$__interval", "10s")
        .replace("$host", ".*")
        .replace("$server", ".*")
}

/// Returns the values behind the times of all series of an answer.
fn values(answer: &Value) -> Vec<Value> {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let series = list(&answer["results"][0], "series");
    let rows = series.iter().flat_map(|one| list(one, "values"));
    rows.filter_map(|row| row.as_array()?.get(1).cloned())
        .filter(|value| !value.is_null())
        .collect()
}

#[test]
fn every_query_of_the_dashboards_finds_data() {
    let server = Monitored::start();
    let now_ms = now_ms();
    server.write_samples(now_ms);
    for (name, dashboard) in dashboards() {
        let variables = dashboard["templating"]["list"]
            .as_array()
            .expect("variables");
        for variable in variables {
            let query = variable["query"].as_str().expect("a query");
            assert!(!values(&server.query(query)).is_empty(), "{name}: {query}");
        }
        let panels = dashboard["panels"].as_array().expect("panels");
        assert!(panels.len() >= 5, "{name}");
        for panel in panels {
            for target in panel["targets"].as_array().expect("targets") {
                let query = replaced(target["query"].as_str().expect("a query"), now_ms);
                assert!(
                    !query.contains('$') || query.contains("$/"),
                    "{name}: {query}"
                );
                let answer = server.query(&query);
                assert!(
                    answer["results"][0]["error"].is_null(),
                    "{name}: {query}\n{answer}"
                );
                assert!(!values(&answer).is_empty(), "{name}: {query}\n{answer}");
            }
        }
    }
}

/// Runs the commands of the blocks that are marked `sh`, with the ports of this run. The server of the page is the one that runs
/// already.
#[test]
fn the_commands_of_the_page_do_what_it_says() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: there is no curl");
        return;
    }
    let server = Monitored::start();
    server.write_samples(now_ms());
    let page = folder().join("../../docs/first_dashboard.md");
    let page = std::fs::read_to_string(page).expect("a page");
    let mut answers = Vec::new();
    for block in page.split("```sh\n").skip(1) {
        let (commands, _) = block.split_once("```").expect("the end of a block");
        for command in commands.lines() {
            if command.starts_with("nilometer serve ") {
                assert!(
                    command.contains("--influxPort 8086") && command.contains("--httpPort 28080")
                );
                continue;
            }
            let typed = command
                .replace(":8086", &format!(":{}", server.influx_port))
                .replace(":28080", &format!(":{}", server.http_port));
            let output = Command::new("sh").args(["-c", &typed]).output();
            let output = output.expect("a shell");
            assert!(output.status.success(), "{typed}: {output:?}");
            answers.push(String::from_utf8_lossy(&output.stdout).into_owned());
        }
    }
    assert_eq!(answers.len(), 4, "{answers:?}");
    assert!(answers[2].contains("[\"cpu\"]"), "{answers:?}");
    assert!(answers[3].contains("\"cpu\":\"cpu-total\""), "{answers:?}");
}

#[test]
fn the_provisioned_files_name_each_other() {
    let text = |name: &str| std::fs::read_to_string(folder().join(name)).expect("a file");
    let source = text("provisioning/datasources/nilometer.yaml");
    assert!(source.contains("uid: nilometer\n") && source.contains("dbName: telegraf\n"));
    assert!(text("telegraf.conf").contains("database = \"telegraf\""));
    for (name, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().expect("panels") {
            assert_eq!(panel["datasource"]["uid"], "nilometer", "{name}");
            assert_eq!(panel["datasource"]["type"], "influxdb", "{name}");
        }
    }
}
