// What Telegraf sends: its own agent with its own plugins, which reads points from a file once and writes them through an output.
//
// Only the plugins that are used here are compiled; the whole of Telegraf has three hundred and takes many times as long to
// build. Reads NILOMETER_URI and NILOMETER_INFLUX; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names are
// listed in xtask/src/conformance/checks.rs.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/influxdata/telegraf/agent"
	"github.com/influxdata/telegraf/config"
	_ "github.com/influxdata/telegraf/plugins/inputs/file"
	_ "github.com/influxdata/telegraf/plugins/outputs/influxdb"
	_ "github.com/influxdata/telegraf/plugins/outputs/influxdb_v2"
	_ "github.com/influxdata/telegraf/plugins/outputs/mongodb"
	_ "github.com/influxdata/telegraf/plugins/parsers/influx"
	_ "github.com/influxdata/telegraf/plugins/serializers/influx"
	"go.mongodb.org/mongo-driver/bson"
	"go.mongodb.org/mongo-driver/bson/primitive"
	"go.mongodb.org/mongo-driver/mongo"
	"go.mongodb.org/mongo-driver/mongo/options"
)

const (
	rows    = 1200
	startMs = int64(1_700_000_000_000)
)

var (
	ctx    = context.Background()
	uri    = os.Getenv("NILOMETER_URI")
	influx = os.Getenv("NILOMETER_INFLUX")
	client *mongo.Client
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](value T, err error) T {
	must(err)
	return value
}

func equal(got, expected any) {
	if !reflect.DeepEqual(got, expected) {
		panic(fmt.Sprintf("got %#v, expected %#v", got, expected))
	}
}

// points returns lines as `inputs.cpu` makes them, and one with a field of each type, ten seconds apart in two series.
func points() string {
	var out strings.Builder
	for i := range rows {
		at := (startMs + int64(i/2)*10_000) * 1_000_000
		fmt.Fprintf(&out, "cpu,cpu=cpu%d,host=a\\ b usage_user=%g,usage_system=%g,usage_idle=%g %d\n", i%2, float64(i)/4, 1.5, 90.25, at)
	}
	fmt.Fprintf(&out, "kinds,host=ä text=\"a \\\"b\\\" ünd, c=d\",count=-7i,big=9007199254740993i,up=true,ratio=0.1 %d\n", startMs*1_000_000)
	return out.String()
}

// runTelegraf gathers the lines once and writes them through an output.
func runTelegraf(lines, output string) error {
	folder := get(os.MkdirTemp("", "telegraf"))
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "points")
	must(os.WriteFile(file, []byte(lines), 0o600))
	text := fmt.Sprintf(`
[agent]
  omit_hostname = true
  metric_batch_size = 1000
  metric_buffer_limit = 100000
  skip_processors_after_aggregators = true
[[inputs.file]]
  files = [%q]
  data_format = "influx"
%s`, file, output)
	parsed := config.NewConfig()
	must(parsed.LoadConfigData([]byte(text), "conformance"))
	return agent.NewAgent(parsed).Once(ctx, 0)
}

// query returns the rows of the first series of a statement of InfluxQL.
func query(db, statement string) []any {
	parameters := url.Values{"db": {db}, "q": {statement}, "epoch": {"ms"}}
	response := get(http.Get(influx + "/query?" + parameters.Encode()))
	defer response.Body.Close()
	body := get(io.ReadAll(response.Body))
	equal(response.StatusCode, 200)
	var answer struct {
		Results []struct {
			Series []struct{ Values []any }
			Error  string
		}
	}
	must(json.Unmarshal(body, &answer))
	if len(answer.Results) != 1 || answer.Results[0].Error != "" || len(answer.Results[0].Series) != 1 {
		panic(string(body))
	}
	return answer.Results[0].Series[0].Values
}

// checkArrival compares what is stored with the lines of points.
func checkArrival(db, timeField string) {
	cpu := client.Database(db).Collection("cpu")
	equal(get(cpu.CountDocuments(ctx, bson.D{})), int64(rows))
	at := primitive.DateTime(startMs + 7*10_000)
	filter := bson.D{{Key: timeField, Value: at}, {Key: "tags.cpu", Value: "cpu1"}}
	var found bson.M
	must(cpu.FindOne(ctx, filter).Decode(&found))
	equal(found["tags"], bson.M{"cpu": "cpu1", "host": "a b"})
	equal(found["usage_user"], 15.0/4)
	equal(found["usage_idle"], 90.25)
	equal(found[timeField], at)
	var kinds bson.M
	must(client.Database(db).Collection("kinds").FindOne(ctx, bson.D{}).Decode(&kinds))
	delete(kinds, "_id")
	equal(kinds, bson.M{
		timeField: primitive.DateTime(startMs), "tags": bson.M{"host": "ä"}, "text": `a "b" ünd, c=d`,
		"count": int64(-7), "big": int64(9007199254740993), "up": true, "ratio": 0.1,
	})
	// Both are measurements of InfluxQL, whatever their time field is called.
	equal(query(db, "SELECT count(usage_user), max(usage_user) FROM cpu"), []any{[]any{0.0, float64(rows), float64(rows-1) / 4}})
	between := fmt.Sprintf("time >= %dms AND time < %dms", startMs, startMs+20_000)
	equal(query(db, "SELECT last(usage_user) FROM cpu WHERE cpu = 'cpu1' AND "+between),
		[]any{[]any{float64(startMs + 10_000), 0.75}})
}

func telegrafWritesLines() {
	must(runTelegraf(points(), fmt.Sprintf("[[outputs.influxdb]]\n  urls = [%q]\n  database = \"telegraf_lines\"\n", influx)))
	checkArrival("telegraf_lines", "time")
}

func telegrafRepeatsLines() {
	must(runTelegraf(points(), fmt.Sprintf("[[outputs.influxdb]]\n  urls = [%q]\n  database = \"telegraf_lines\"\n  content_encoding = \"identity\"\n", influx)))
	checkArrival("telegraf_lines", "time")
}

func telegrafKeepsGoodLines() {
	lines := fmt.Sprintf("cpu,cpu=cpu0,host=late usage_user=1 %[1]d\ncpu,cpu=cpu1,host=late usage_user=\"text\" %[1]d\ncpu,cpu=cpu2,host=late usage_user=3 %[1]d\n",
		startMs*1_000_000)
	// It drops what the server names, and is content.
	must(runTelegraf(lines, fmt.Sprintf("[[outputs.influxdb]]\n  urls = [%q]\n  database = \"telegraf_lines\"\n", influx)))
	found := get(client.Database("telegraf_lines").Collection("cpu").Distinct(ctx, "tags.cpu", bson.D{{Key: "tags.host", Value: "late"}}))
	equal(found, []any{"cpu0", "cpu2"})
}

func telegrafWritesLinesOfVersion2() {
	must(runTelegraf(points(), fmt.Sprintf("[[outputs.influxdb_v2]]\n  urls = [%q]\n  token = \"\"\n  organization = \"o\"\n  bucket = \"telegraf_two\"\n", influx)))
	checkArrival("telegraf_two", "time")
}

func telegrafWritesDocuments() {
	must(runTelegraf(points(), fmt.Sprintf("[[outputs.mongodb]]\n  dsn = %q\n  database = \"telegraf_documents\"\n  granularity = \"minutes\"\n  ttl = \"360000h\"\n", uri)))
	checkArrival("telegraf_documents", "timestamp")
	specs := get(client.Database("telegraf_documents").ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: "cpu"}}))
	equal(len(specs), 1)
	equal(specs[0].Type, "timeseries")
	series := specs[0].Options.Lookup("timeseries")
	equal(series.Document().Lookup("timeField").StringValue(), "timestamp")
	equal(series.Document().Lookup("metaField").StringValue(), "tags")
	equal(series.Document().Lookup("granularity").StringValue(), "minutes")
	equal(specs[0].Options.Lookup("expireAfterSeconds").AsInt64(), int64(360_000*3600))
}

func telegrafLogsIn() {
	user := bson.D{
		{Key: "createUser", Value: "telegraf"}, {Key: "pwd", Value: "secret"},
		{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "telegraf_user"}}}},
	}
	must(client.Database("telegraf_user").RunCommand(ctx, user).Err())
	lines := fmt.Sprintf("[[outputs.influxdb]]\n  urls = [%q]\n  database = \"telegraf_user\"\n  username = \"telegraf\"\n  password = \"secret\"\n", influx)
	must(runTelegraf(points(), lines))
	checkArrival("telegraf_user", "time")
	documents := fmt.Sprintf("[[outputs.mongodb]]\n  dsn = %q\n  database = \"telegraf_user_documents\"\n  authentication = \"SCRAM\"\n  username = \"owner\"\n  password = \"secret\"\n", uri)
	user[0].Value = "owner"
	user[2].Value = bson.A{bson.D{{Key: "role", Value: "readWriteAnyDatabase"}, {Key: "db", Value: "admin"}}}
	must(client.Database("admin").RunCommand(ctx, user).Err())
	must(runTelegraf(points(), documents))
	checkArrival("telegraf_user_documents", "timestamp")
	must(client.Database("admin").RunCommand(ctx, bson.D{{Key: "dropUser", Value: "owner"}}).Err())
	must(client.Database("telegraf_user").RunCommand(ctx, bson.D{{Key: "dropUser", Value: "telegraf"}}).Err())
}

func report(name string, check func()) {
	defer func() {
		if problem := recover(); problem != nil {
			fmt.Printf("not ok %s: %s\n", name, strings.ReplaceAll(fmt.Sprint(problem), "\n", " "))
			return
		}
		fmt.Printf("ok %s\n", name)
	}()
	check()
}

func main() {
	limited, cancel := context.WithTimeout(ctx, 380*time.Second)
	defer cancel()
	ctx = limited
	client = get(mongo.Connect(ctx, options.Client().ApplyURI(uri)))
	report("telegraf_writes_lines", telegrafWritesLines)
	report("telegraf_repeats_lines", telegrafRepeatsLines)
	report("telegraf_keeps_good_lines", telegrafKeepsGoodLines)
	report("telegraf_writes_lines_of_version_2", telegrafWritesLinesOfVersion2)
	report("telegraf_writes_documents", telegrafWritesDocuments)
	report("telegraf_logs_in", telegrafLogsIn)
}
