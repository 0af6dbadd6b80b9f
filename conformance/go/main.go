// What a Go program does with a time-series database, through the official driver.
//
// Reads NILOMETER_URI; prints one line per check, `ok NAME` or `not ok NAME: reason`. The names are
// the same for every client and are listed in xtask/src/conformance/checks.rs.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

const (
	sensors = 4
	single  = 10
	bulk    = 1000
	total   = single + bulk
)

var (
	ctx      = context.Background()
	uri      = os.Getenv("NILOMETER_URI")
	start    = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	client   *mongo.Client
	db       *mongo.Database
	readings *mongo.Collection
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
		panic(fmt.Sprintf("got %v, expected %v", got, expected))
	}
}

func check(holds bool, message string) {
	if !holds {
		panic(message)
	}
}

// codeOf returns the code of the error that an action must return.
func codeOf(err error) int {
	if err == nil {
		panic("no error")
	}
	var write mongo.WriteException
	if errors.As(err, &write) && len(write.WriteErrors) > 0 {
		return write.WriteErrors[0].Code
	}
	var server mongo.ServerError
	if errors.As(err, &server) {
		return server.ErrorCodes()[0]
	}
	panic(err)
}

func at(i int) time.Time { return start.Add(time.Duration(i) * time.Minute) }

func measurement(i int) bson.D {
	return bson.D{
		{Key: "time", Value: at(i)},
		{Key: "sensor", Value: fmt.Sprintf("s%d", i%sensors)},
		{Key: "value", Value: float64(i)},
		{Key: "n", Value: int32(i)},
	}
}

func timeseries(granularity string) *options.TimeSeriesOptionsBuilder {
	return options.TimeSeries().SetTimeField("time").SetMetaField("sensor").SetGranularity(granularity)
}

func all(cursor *mongo.Cursor, err error) []bson.M {
	must(err)
	var found []bson.M
	must(cursor.All(ctx, &found))
	return found
}

func numbers(documents []bson.M) []int {
	out := []int{}
	for _, d := range documents {
		out = append(out, int(d["n"].(int32)))
	}
	return out
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func connectAndPing() {
	must(client.Ping(ctx, nil))
	var hello, build bson.M
	must(client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello))
	equal(hello["maxBsonObjectSize"], int32(16*1024*1024))
	must(client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&build))
	equal(build["versionArray"].(bson.A)[0], int32(8))
}

func createTimeSeries() {
	must(db.Drop(ctx))
	must(db.CreateCollection(ctx, "readings", options.CreateCollection().SetTimeSeriesOptions(timeseries("seconds"))))
	found := get(db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: "readings"}}))
	equal(found[0].Type, "timeseries")
	equal(found[0].Options.Lookup("timeseries", "metaField").StringValue(), "sensor")
}

func insertOneByOne() {
	for i := range single {
		check(get(readings.InsertOne(ctx, measurement(i))).Acknowledged, "not acknowledged")
	}
	equal(get(readings.CountDocuments(ctx, bson.D{})), int64(single))
}

func insertInBulk() {
	var batch []any
	for i := single; i < total; i++ {
		batch = append(batch, measurement(i))
	}
	equal(len(get(readings.InsertMany(ctx, batch)).InsertedIDs), bulk)
	equal(get(readings.CountDocuments(ctx, bson.D{})), int64(total))
}

func findFilterSortLimitProjection() {
	filter := bson.D{
		{Key: "sensor", Value: "s1"},
		{Key: "value", Value: bson.D{{Key: "$gte", Value: 100}, {Key: "$lt", Value: 900}}},
		{Key: "time", Value: bson.D{{Key: "$gt", Value: start}}},
	}
	found := all(readings.Find(ctx, filter, options.Find().
		SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "n", Value: 1}, {Key: "time", Value: 1}}).
		SetSort(bson.D{{Key: "time", Value: -1}}).SetSkip(1).SetLimit(3)))
	expected := []bson.M{}
	for _, n := range []int{893, 889, 885} {
		expected = append(expected, bson.M{"time": bson.NewDateTimeFromTime(at(n)), "n": int32(n)})
	}
	equal(found, expected)
	var one bson.M
	in := bson.D{{Key: "n", Value: bson.D{{Key: "$in", Value: bson.A{7, 8}}}}}
	must(readings.FindOne(ctx, in, options.FindOne().SetSort(bson.D{{Key: "n", Value: 1}})).Decode(&one))
	equal(one["n"], int32(7))
}

func aggregateByHour() {
	trunc := bson.D{{Key: "$dateTrunc", Value: bson.D{{Key: "date", Value: "$time"}, {Key: "unit", Value: "hour"}}}}
	got := all(readings.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "time", Value: bson.D{{Key: "$lt", Value: at(12 * 60)}}}}}},
		{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: bson.D{{Key: "hour", Value: trunc}, {Key: "sensor", Value: "$sensor"}}},
			{Key: "mean", Value: bson.D{{Key: "$avg", Value: "$value"}}},
			{Key: "count", Value: bson.D{{Key: "$sum", Value: 1}}},
		}}},
		{{Key: "$sort", Value: bson.D{{Key: "_id.hour", Value: 1}, {Key: "_id.sensor", Value: 1}}}},
	}))
	expected := []bson.M{}
	for hour := range 12 {
		for s := range sensors {
			sum, count := 0, 0
			for i := hour * 60; i < hour*60+60; i++ {
				if i%sensors == s {
					sum, count = sum+i, count+1
				}
			}
			id := bson.D{
				{Key: "hour", Value: bson.NewDateTimeFromTime(at(hour * 60))},
				{Key: "sensor", Value: fmt.Sprintf("s%d", s)},
			}
			expected = append(expected, bson.M{"_id": id, "mean": float64(sum) / float64(count), "count": int32(count)})
		}
	}
	equal(got, expected)
}

func cursorOverBatches() {
	found := all(readings.Find(ctx, bson.D{}, options.Find().SetBatchSize(64).SetSort(bson.D{{Key: "time", Value: 1}})))
	equal(numbers(found), upTo(total))
	sorted := numbers(all(readings.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$project", Value: bson.D{{Key: "n", Value: 1}}}},
		{{Key: "$sort", Value: bson.D{{Key: "n", Value: -1}}}},
	}, options.Aggregate().SetBatchSize(64))))
	slices.Reverse(sorted)
	equal(sorted, upTo(total))
}

func cursorClosedEarly() {
	cursor := get(readings.Find(ctx, bson.D{}, options.Find().SetBatchSize(10)))
	check(cursor.Next(ctx), "nothing found")
	id := cursor.ID()
	check(id != 0, "the server kept no cursor")
	must(cursor.Close(ctx))
	again := bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "readings"}}
	equal(codeOf(db.RunCommand(ctx, again).Err()), 43)
}

func countAndDistinct() {
	of := bson.D{{Key: "sensor", Value: "s2"}}
	equal(get(readings.CountDocuments(ctx, of)), int64((total-2+sensors-1)/sensors))
	equal(get(readings.EstimatedDocumentCount(ctx)), int64(total))
	var names []string
	must(readings.Distinct(ctx, "sensor", bson.D{}).Decode(&names))
	slices.Sort(names)
	equal(names, []string{"s0", "s1", "s2", "s3"})
}

func listCollectionsAndDatabases() {
	check(slices.Contains(get(client.ListDatabaseNames(ctx, bson.D{})), db.Name()), "database not listed")
	names := slices.DeleteFunc(get(db.ListCollectionNames(ctx, bson.D{})), func(n string) bool {
		return strings.HasPrefix(n, "system.")
	})
	equal(names, []string{"readings"})
}

func readBuckets() {
	buckets := all(db.Collection("system.buckets.readings").Find(ctx, bson.D{}))
	check(len(buckets) >= sensors, fmt.Sprintf("%d buckets", len(buckets)))
	series, count := map[string]bool{}, 0
	for _, b := range buckets {
		control := b["control"].(bson.D)
		for _, e := range control {
			switch e.Key {
			case "version":
				check(e.Value == int32(2) || e.Value == int32(3), fmt.Sprint("version ", e.Value))
			case "count":
				count += int(e.Value.(int32))
			}
		}
		series[b["meta"].(string)] = true
	}
	equal(len(series), sensors)
	equal(count, total)
}

func everyTypeComesBack() {
	must(db.CreateCollection(ctx, "types", options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("t"))))
	collection := db.Collection("types")
	id := get(bson.ObjectIDFromHex("0123456789abcdef01234567"))
	values := bson.A{
		1.5, math.Inf(1), "text",
		bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: bson.A{int32(1), "x"}}}}},
		bson.A{int32(1), bson.A{int32(2)}, bson.D{{Key: "c", Value: nil}}},
		bson.Binary{Data: []byte{0, 1}}, id, true, nil, bson.Regex{Pattern: "^a", Options: "i"},
		int32(math.MaxInt32), int64(1) << 40, bson.Timestamp{T: 5, I: 6},
		get(bson.ParseDecimal128("1.10")), bson.MinKey{}, bson.MaxKey{}, bson.JavaScript("f()"),
		bson.NewDateTimeFromTime(time.Date(1901, 1, 1, 0, 0, 0, 0, time.UTC)),
	}
	early := time.Date(1871, 1, 1, 0, 0, 0, 0, time.UTC)
	var documents []any
	for i, v := range values {
		t := early.Add(time.Duration(i) * time.Minute)
		documents = append(documents, bson.D{{Key: "_id", Value: i}, {Key: "t", Value: t}, {Key: "v", Value: v}})
	}
	get(collection.InsertMany(ctx, documents))
	got := bson.A{}
	for i, d := range all(collection.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))) {
		equal(d["t"], bson.NewDateTimeFromTime(early.Add(time.Duration(i)*time.Minute)))
		got = append(got, d["v"])
	}
	equal(got, values)
	must(collection.Drop(ctx))
}

func ordinaryCollection() {
	plain := db.Collection("plain")
	var documents []any
	for i := range 6 {
		documents = append(documents, bson.D{{Key: "_id", Value: i}, {Key: "tags", Value: []string{"a", "b"}[:i%3]}})
	}
	get(plain.InsertMany(ctx, documents))
	ids := []int{}
	for _, d := range all(plain.Find(ctx, bson.D{{Key: "tags", Value: "b"}}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))) {
		ids = append(ids, int(d["_id"].(int32)))
	}
	equal(ids, []int{2, 5})
	_, err := plain.InsertOne(ctx, bson.D{{Key: "_id", Value: 3}})
	equal(codeOf(err), 11000)
	must(plain.Drop(ctx))
}

func unacknowledgedWrite() {
	silent := db.Collection("readings", options.Collection().SetWriteConcern(writeconcern.Unacknowledged()))
	get(silent.InsertOne(ctx, measurement(total)))
	// Another connection of the pool may be faster than the write.
	for range 100 {
		if get(readings.CountDocuments(ctx, bson.D{})) == total+1 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	panic("the measurement never arrived")
}

func compressedMessages() {
	for _, compressor := range []string{"snappy", "zlib", "zstd"} {
		other := get(mongo.Connect(options.Client().ApplyURI(uri).SetCompressors([]string{compressor})))
		collection := other.Database(db.Name()).Collection("readings")
		earlier := bson.D{{Key: "n", Value: bson.D{{Key: "$lt", Value: total}}}}
		equal(len(all(collection.Find(ctx, earlier))), total)
		must(other.Disconnect(ctx))
	}
}

func orderedAndUnorderedErrors() {
	must(db.CreateCollection(ctx, "mixed", options.CreateCollection().SetTimeSeriesOptions(timeseries("seconds"))))
	mixed := db.Collection("mixed")
	for _, c := range []struct {
		ordered bool
		left    int64
	}{{true, 1}, {false, 3}} {
		batch := []any{measurement(0), bson.D{{Key: "sensor", Value: "x"}}, measurement(1)}
		_, err := mixed.InsertMany(ctx, batch, options.InsertMany().SetOrdered(c.ordered))
		var failed mongo.BulkWriteException
		check(errors.As(err, &failed), fmt.Sprint("not a bulk error: ", err))
		equal(len(failed.WriteErrors), 1)
		equal(failed.WriteErrors[0].Index, 1)
		equal(get(mixed.CountDocuments(ctx, bson.D{})), c.left)
	}
	must(mixed.Drop(ctx))
}

func errorCreateWithOtherOptions() {
	other := options.CreateCollection().SetTimeSeriesOptions(timeseries("hours"))
	equal(codeOf(db.CreateCollection(ctx, "readings", other)), 48)
}

func errorNoDate() {
	_, err := readings.InsertOne(ctx, bson.D{{Key: "sensor", Value: "s0"}, {Key: "value", Value: 1}})
	equal(codeOf(err), 2)
	_, err = readings.InsertOne(ctx, bson.D{{Key: "time", Value: "today"}, {Key: "sensor", Value: "s0"}})
	equal(codeOf(err), 2)
}

func errorUnknownCommand() {
	equal(codeOf(db.RunCommand(ctx, bson.D{{Key: "noSuchCommand", Value: 1}}).Err()), 59)
}

func errorUnknownStage() {
	_, err := readings.Aggregate(ctx, mongo.Pipeline{{{Key: "$noSuchStage", Value: bson.D{}}}})
	equal(codeOf(err), 40324)
}

func drop() {
	must(readings.Drop(ctx))
	names := get(db.ListCollectionNames(ctx, bson.D{}))
	check(!slices.Contains(names, "readings") && !slices.Contains(names, "system.buckets.readings"), "still there")
	must(db.Drop(ctx))
	check(!slices.Contains(get(client.ListDatabaseNames(ctx, bson.D{})), db.Name()), "database still there")
}

const gauge, secret, loginsName = "gauge", "p@ss: weir, Ω", "logins_go"

// loggedIn calls a function with the database of a client that logs in like this, and closes the client.
func loggedIn(mechanism, password string, action func(*mongo.Database)) {
	credential := options.Credential{
		AuthMechanism: mechanism, AuthSource: loginsName, Username: gauge, Password: password,
	}
	own := get(mongo.Connect(options.Client().ApplyURI(uri).SetAuth(credential)))
	defer func() { must(own.Disconnect(ctx)) }()
	action(own.Database(loginsName))
}

func logInByScram() {
	user := bson.D{{Key: "createUser", Value: gauge}, {Key: "pwd", Value: secret}, {Key: "roles", Value: bson.A{"readWrite"}}}
	must(client.Database(loginsName).RunCommand(ctx, user).Err())
	for _, mechanism := range []string{"SCRAM-SHA-1", "SCRAM-SHA-256", ""} {
		loggedIn(mechanism, secret, func(own *mongo.Database) {
			var status struct {
				AuthInfo struct {
					AuthenticatedUsers []struct{ User, Db string }
				}
			}
			must(own.RunCommand(ctx, bson.D{{Key: "connectionStatus", Value: 1}}).Decode(&status))
			users := status.AuthInfo.AuthenticatedUsers
			check(len(users) == 1 && users[0].User == gauge && users[0].Db == loginsName, fmt.Sprint(users))
			get(own.Collection("levels").InsertOne(ctx, bson.D{{Key: "level", Value: 7}}))
		})
	}
}

func wrongPassword() {
	loggedIn("", "weir", func(own *mongo.Database) {
		err := own.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err()
		check(err != nil && strings.Contains(err.Error(), "Authentication failed"), fmt.Sprint("told: ", err))
	})
	logins := client.Database(loginsName)
	must(logins.RunCommand(ctx, bson.D{{Key: "dropUser", Value: gauge}}).Err())
	must(logins.Drop(ctx))
}

func attempt(name string, action func()) {
	defer func() {
		if reason := recover(); reason != nil {
			fmt.Printf("not ok %s: %s\n", name, strings.ReplaceAll(fmt.Sprint(reason), "\n", " "))
		}
	}()
	action()
	fmt.Println("ok", name)
}

func main() {
	client = get(mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(10 * time.Second)))
	db = client.Database("conformance_go")
	readings = db.Collection("readings")
	for _, c := range []struct {
		name   string
		action func()
	}{
		{"connect_and_ping", connectAndPing},
		{"create_time_series", createTimeSeries},
		{"insert_one_by_one", insertOneByOne},
		{"insert_in_bulk", insertInBulk},
		{"find_filter_sort_limit_projection", findFilterSortLimitProjection},
		{"aggregate_by_hour", aggregateByHour},
		{"cursor_over_batches", cursorOverBatches},
		{"cursor_closed_early", cursorClosedEarly},
		{"count_and_distinct", countAndDistinct},
		{"list_collections_and_databases", listCollectionsAndDatabases},
		{"read_buckets", readBuckets},
		{"every_type_comes_back", everyTypeComesBack},
		{"ordinary_collection", ordinaryCollection},
		{"unacknowledged_write", unacknowledgedWrite},
		{"compressed_messages", compressedMessages},
		{"ordered_and_unordered_errors", orderedAndUnorderedErrors},
		{"error_create_with_other_options", errorCreateWithOtherOptions},
		{"error_no_date", errorNoDate},
		{"error_unknown_command", errorUnknownCommand},
		{"error_unknown_stage", errorUnknownStage},
		{"drop", drop},
		{"log_in_by_scram", logInByScram},
		{"wrong_password", wrongPassword},
	} {
		attempt(c.name, c.action)
	}
	must(client.Disconnect(ctx))
}
