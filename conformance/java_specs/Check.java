// The drivers' unified tests of change streams, transactions, sessions, and retryable reads and writes, run by the synchronous Java
// driver against a replica set of one. The files come with the source distribution of pymongo: the driver's packages have none.
//
// Each test is a check, named after its folder, file and description. A folder is a check as well: it passes if one of its tests ran.

import com.mongodb.ClientSessionOptions;
import com.mongodb.ConnectionString;
import com.mongodb.MongoBulkWriteException;
import com.mongodb.MongoClientException;
import com.mongodb.MongoClientSettings;
import com.mongodb.MongoCommandException;
import com.mongodb.MongoException;
import com.mongodb.MongoExecutionTimeoutException;
import com.mongodb.MongoNamespace;
import com.mongodb.MongoSocketException;
import com.mongodb.MongoWriteConcernException;
import com.mongodb.ReadConcern;
import com.mongodb.ReadConcernLevel;
import com.mongodb.ReadPreference;
import com.mongodb.TransactionOptions;
import com.mongodb.WriteConcern;
import com.mongodb.bulk.BulkWriteResult;
import com.mongodb.client.AggregateIterable;
import com.mongodb.client.ChangeStreamIterable;
import com.mongodb.client.ClientSession;
import com.mongodb.client.FindIterable;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoCursor;
import com.mongodb.client.MongoDatabase;
import com.mongodb.client.MongoIterable;
import com.mongodb.client.gridfs.GridFSBucket;
import com.mongodb.client.gridfs.GridFSBuckets;
import com.mongodb.client.model.BulkWriteOptions;
import com.mongodb.client.model.DeleteManyModel;
import com.mongodb.client.model.DeleteOneModel;
import com.mongodb.client.model.FindOneAndDeleteOptions;
import com.mongodb.client.model.FindOneAndReplaceOptions;
import com.mongodb.client.model.FindOneAndUpdateOptions;
import com.mongodb.client.model.IndexOptions;
import com.mongodb.client.model.InsertManyOptions;
import com.mongodb.client.model.InsertOneModel;
import com.mongodb.client.model.RenameCollectionOptions;
import com.mongodb.client.model.ReplaceOneModel;
import com.mongodb.client.model.ReplaceOptions;
import com.mongodb.client.model.ReturnDocument;
import com.mongodb.client.model.UpdateManyModel;
import com.mongodb.client.model.UpdateOneModel;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.WriteModel;
import com.mongodb.client.model.changestream.FullDocument;
import com.mongodb.client.model.changestream.FullDocumentBeforeChange;
import com.mongodb.client.result.DeleteResult;
import com.mongodb.client.result.InsertManyResult;
import com.mongodb.client.result.InsertOneResult;
import com.mongodb.client.result.UpdateResult;
import com.mongodb.event.CommandFailedEvent;
import com.mongodb.event.CommandListener;
import com.mongodb.event.CommandStartedEvent;
import com.mongodb.event.CommandSucceededEvent;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;
import org.bson.BsonArray;
import org.bson.BsonBinary;
import org.bson.BsonBoolean;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonNull;
import org.bson.BsonString;
import org.bson.BsonValue;
import org.bson.json.JsonMode;
import org.bson.json.JsonWriterSettings;

public final class Check {
  static final String URI = System.getenv("NILOMETER_URI");

  static final Map<String, String> FOLDERS = new LinkedHashMap<>();

  static {
    FOLDERS.put("change_streams", "change_streams/unified");
    FOLDERS.put("retryable_reads", "retryable_reads/unified");
    FOLDERS.put("retryable_writes", "retryable_writes/unified");
    FOLDERS.put("sessions", "sessions");
    FOLDERS.put("transactions", "transactions/unified");
    FOLDERS.put("convenient_transactions", "transactions-convenient-api/unified");
  }

  // Tests that select a secondary, of which a set of one has none, and one that the driver does not pass anywhere: it ends a
  // transaction on a closed connection without `abortTransaction`.
  static final Set<String> LEFT_OUT =
      Set.of(
          "callback succeeds after multiple connection errors",
          "readPreference inherited from client",
          "run command with secondary read preference in client option and primary read preference in transaction options");

  // Commands that belong to no test.
  static final Set<String> IGNORED_COMMANDS = Set.of("configureFailPoint", "hello", "saslContinue", "saslStart");

  // A test that runs longer has failed.
  static final int TEST_SECONDS_MAX = 15;

  static final int HEARTBEAT_MS = 50;

  static final int REASON_CHARS_MAX = 200;

  static final JsonWriterSettings EXTENDED = JsonWriterSettings.builder().outputMode(JsonMode.EXTENDED).build();

  // The test cannot run here.
  static final class Skipped extends RuntimeException {
    Skipped(String reason) {
      super(reason);
    }
  }

  static final class Failed extends RuntimeException {
    Failed(String reason) {
      super(reason);
    }
  }

  record Event(String kind, String name, String database, BsonDocument command, BsonDocument reply) {}

  static MongoClient client;
  static String version;
  static BsonDocument parameters;

  static BsonDocument document(BsonDocument of, String name) {
    return of.getDocument(name, new BsonDocument());
  }

  static String text(BsonDocument of, String name) {
    return of.containsKey(name) ? of.getString(name).getValue() : null;
  }

  static BsonDocument copy(BsonDocument of) {
    return of == null ? null : BsonDocument.parse(of.toJson(EXTENDED));
  }

  static boolean isAtLeast(String version, String other) {
    String[] one = version.split("\\."), two = other.split("\\.");
    for (int at = 0; at < one.length && at < two.length; at++) {
      int order = Integer.compare(Integer.parseInt(one[at]), Integer.parseInt(two[at]));
      if (order != 0) return order > 0;
    }
    return true;
  }

  static boolean meets(BsonDocument of) {
    if (!of.containsKey("runOnRequirements")) return true;
    for (BsonValue value : of.getArray("runOnRequirements")) {
      BsonDocument one = value.asDocument();
      String least = text(one, "minServerVersion"), most = text(one, "maxServerVersion");
      boolean fits = (least == null || isAtLeast(version, least)) && (most == null || isAtLeast(most, version));
      fits &= !one.containsKey("topologies") || one.getArray("topologies").contains(new BsonString("replicaset"));
      fits &= !one.getBoolean("auth", BsonBoolean.FALSE).getValue() && !one.containsKey("csfle");
      fits &= !"require".equals(text(one, "serverless"));
      for (Map.Entry<String, BsonValue> parameter : document(one, "serverParameters").entrySet()) {
        fits &= parameter.getValue().equals(parameters.get(parameter.getKey()));
      }
      if (fits) return true;
    }
    return false;
  }

  // The clients, sessions and so on of one test.
  static final class Entities {
    final Map<String, Object> all = new LinkedHashMap<>();
    final Map<String, BsonDocument> lsids = new HashMap<>();
    final Map<String, List<Event>> events = new HashMap<>();
    final List<BsonValue> failPoints = new ArrayList<>();

    Object get(String id) {
      Object found = all.get(id);
      if (found == null) throw new Skipped("there is no entity " + id);
      return found;
    }

    void create(BsonDocument description) {
      String kind = description.getFirstKey();
      BsonDocument given = description.getDocument(kind);
      String id = given.getString("id").getValue();
      switch (kind) {
        case "client" -> all.put(id, open(given));
        case "database" -> {
          MongoClient of = (MongoClient) get(text(given, "client"));
          all.put(id, Check.options(of.getDatabase(text(given, "databaseName")), document(given, "databaseOptions")));
        }
        case "collection" -> {
          MongoDatabase of = (MongoDatabase) get(text(given, "database"));
          MongoCollection<BsonDocument> made = of.getCollection(text(given, "collectionName"), BsonDocument.class);
          all.put(id, Check.options(made, document(given, "collectionOptions")));
        }
        case "session" -> {
          BsonDocument options = document(given, "sessionOptions");
          ClientSessionOptions.Builder builder = ClientSessionOptions.builder();
          if (options.containsKey("snapshot")) builder.snapshot(options.getBoolean("snapshot").getValue());
          if (options.containsKey("causalConsistency")) {
            builder.causallyConsistent(options.getBoolean("causalConsistency").getValue());
          }
          builder.defaultTransactionOptions(ofTransaction(document(options, "defaultTransactionOptions")));
          ClientSession session = ((MongoClient) get(text(given, "client"))).startSession(builder.build());
          lsids.put(id, session.getServerSession().getIdentifier());
          all.put(id, session);
        }
        case "bucket" -> all.put(id, GridFSBuckets.create((MongoDatabase) get(text(given, "database"))));
        default -> throw new Skipped("entities of the kind " + kind);
      }
    }

    MongoClient open(BsonDocument given) {
      StringBuilder uri = new StringBuilder(URI);
      document(given, "uriOptions").forEach((name, value) -> uri.append('&').append(name).append('=').append(plain(value)));
      List<String> ignored = new ArrayList<>(IGNORED_COMMANDS);
      given.getArray("ignoreCommandMonitoringEvents", new BsonArray()).forEach(one -> ignored.add(one.asString().getValue()));
      List<String> observed = new ArrayList<>();
      given.getArray("observeEvents", new BsonArray()).forEach(one -> observed.add(one.asString().getValue()));
      List<Event> seen = Collections.synchronizedList(new ArrayList<>());
      events.put(given.getString("id").getValue(), seen);
      CommandListener listener =
          new CommandListener() {
            void note(String kind, String name, String database, BsonDocument command, BsonDocument reply) {
              if (!observed.contains(kind) || ignored.contains(name)) return;
              seen.add(new Event(kind, name, database, copy(command), copy(reply)));
            }

            @Override
            public void commandStarted(CommandStartedEvent event) {
              note("commandStartedEvent", event.getCommandName(), event.getDatabaseName(), event.getCommand(), null);
            }

            @Override
            public void commandSucceeded(CommandSucceededEvent event) {
              note("commandSucceededEvent", event.getCommandName(), event.getDatabaseName(), null, event.getResponse());
            }

            @Override
            public void commandFailed(CommandFailedEvent event) {
              note("commandFailedEvent", event.getCommandName(), event.getDatabaseName(), null, null);
            }
          };
      return MongoClients.create(
          MongoClientSettings.builder()
              .applyConnectionString(new ConnectionString(uri.toString()))
              // After an error of a server that ends, the driver asks for its state with the next heartbeat.
              .applyToServerSettings(
                  settings ->
                      settings
                          .heartbeatFrequency(HEARTBEAT_MS, TimeUnit.MILLISECONDS)
                          .minHeartbeatFrequency(HEARTBEAT_MS, TimeUnit.MILLISECONDS))
              .addCommandListener(listener)
              .build());
    }

    void close() {
      for (BsonValue point : failPoints) {
        admin(new BsonDocument("configureFailPoint", point).append("mode", new BsonString("off")));
      }
      List<Object> backward = new ArrayList<>(all.values());
      Collections.reverse(backward);
      for (Object one : backward) {
        if (one instanceof ClientSession session) session.close();
        if (one instanceof MongoCursor<?> cursor) cursor.close();
        if (one instanceof MongoClient opened) opened.close();
      }
    }
  }

  static BsonDocument admin(BsonDocument command) {
    return client.getDatabase("admin").runCommand(command, BsonDocument.class);
  }

  static String plain(BsonValue value) {
    if (value.isString()) return value.asString().getValue();
    if (value.isBoolean()) return String.valueOf(value.asBoolean().getValue());
    return String.valueOf(value.asNumber().longValue());
  }

  static ReadConcern readConcern(BsonDocument of) {
    BsonDocument given = of.getDocument("readConcern");
    return given.isEmpty() ? ReadConcern.DEFAULT : new ReadConcern(ReadConcernLevel.fromString(text(given, "level")));
  }

  static WriteConcern writeConcern(BsonDocument of) {
    BsonDocument given = of.getDocument("writeConcern");
    WriteConcern concern = WriteConcern.ACKNOWLEDGED;
    if (given.containsKey("w")) {
      BsonValue w = given.get("w");
      concern = w.isString() ? new WriteConcern(w.asString().getValue()) : new WriteConcern(w.asNumber().intValue());
    }
    if (given.containsKey("journal")) concern = concern.withJournal(given.getBoolean("journal").getValue());
    if (given.containsKey("wtimeoutMS")) {
      concern = concern.withWTimeout(given.getNumber("wtimeoutMS").longValue(), TimeUnit.MILLISECONDS);
    }
    return concern;
  }

  static ReadPreference readPreference(BsonDocument of) {
    return ReadPreference.valueOf(text(of.getDocument("readPreference"), "mode"));
  }

  static MongoDatabase options(MongoDatabase to, BsonDocument of) {
    if (of.containsKey("readConcern")) to = to.withReadConcern(readConcern(of));
    if (of.containsKey("writeConcern")) to = to.withWriteConcern(writeConcern(of));
    return of.containsKey("readPreference") ? to.withReadPreference(readPreference(of)) : to;
  }

  static MongoCollection<BsonDocument> options(MongoCollection<BsonDocument> to, BsonDocument of) {
    if (of.containsKey("readConcern")) to = to.withReadConcern(readConcern(of));
    if (of.containsKey("writeConcern")) to = to.withWriteConcern(writeConcern(of));
    return of.containsKey("readPreference") ? to.withReadPreference(readPreference(of)) : to;
  }

  static TransactionOptions ofTransaction(BsonDocument of) {
    TransactionOptions.Builder builder = TransactionOptions.builder();
    if (of.containsKey("readConcern")) builder.readConcern(readConcern(of));
    if (of.containsKey("writeConcern")) builder.writeConcern(writeConcern(of));
    if (of.containsKey("readPreference")) builder.readPreference(readPreference(of));
    if (of.containsKey("maxCommitTimeMS")) {
      builder.maxCommitTime(of.getNumber("maxCommitTimeMS").longValue(), TimeUnit.MILLISECONDS);
    }
    return builder.build();
  }

  // Calls the method of this name that takes these arguments, with the session before them if there is one.
  static Object call(Class<?> type, Object target, String name, ClientSession session, Object... given) {
    List<Object> all = new ArrayList<>(Arrays.asList(given));
    if (session != null) all.add(0, session);
    for (Method method : type.getMethods()) {
      Class<?>[] wanted = method.getParameterTypes();
      if (!method.getName().equals(name) || method.isVarArgs() || wanted.length != all.size()) continue;
      boolean fits = true;
      for (int at = 0; at < wanted.length; at++) fits &= wanted[at].isInstance(all.get(at));
      if (!fits) continue;
      try {
        return method.invoke(target, all.toArray());
      } catch (InvocationTargetException e) {
        if (e.getCause() instanceof RuntimeException cause) throw cause;
        throw new Failed(String.valueOf(e.getCause()));
      } catch (IllegalAccessException e) {
        throw new Failed(e.toString());
      }
    }
    throw new Skipped("the driver has no such " + name);
  }

  static BsonArray all(Object iterable) {
    BsonArray out = new BsonArray();
    for (Object one : (MongoIterable<?>) iterable) out.add(one instanceof String s ? new BsonString(s) : (BsonValue) one);
    return out;
  }

  static List<BsonDocument> stages(BsonDocument given) {
    List<BsonDocument> out = new ArrayList<>();
    given.getArray("pipeline").forEach(stage -> out.add(stage.asDocument()));
    return out;
  }

  static BsonDocument result(UpdateResult of) {
    BsonDocument out = new BsonDocument("matchedCount", new BsonInt64(of.getMatchedCount()));
    out.append("modifiedCount", new BsonInt64(of.getModifiedCount()));
    out.append("upsertedCount", new BsonInt32(of.getUpsertedId() == null ? 0 : 1));
    return of.getUpsertedId() == null ? out : out.append("upsertedId", of.getUpsertedId());
  }

  static BsonDocument result(BulkWriteResult of) {
    BsonDocument inserted = new BsonDocument(), upserted = new BsonDocument();
    of.getInserts().forEach(one -> inserted.append(String.valueOf(one.getIndex()), one.getId()));
    of.getUpserts().forEach(one -> upserted.append(String.valueOf(one.getIndex()), one.getId()));
    return new BsonDocument("insertedCount", new BsonInt32(of.getInsertedCount()))
        .append("matchedCount", new BsonInt32(of.getMatchedCount()))
        .append("modifiedCount", new BsonInt32(of.getModifiedCount()))
        .append("deletedCount", new BsonInt32(of.getDeletedCount()))
        .append("upsertedCount", new BsonInt32(upserted.size()))
        .append("insertedIds", inserted)
        .append("upsertedIds", upserted);
  }

  static WriteModel<BsonDocument> model(BsonDocument request) {
    String kind = request.getFirstKey();
    BsonDocument one = request.getDocument(kind);
    BsonDocument filter = document(one, "filter");
    boolean upsert = one.getBoolean("upsert", BsonBoolean.FALSE).getValue();
    return switch (kind) {
      case "insertOne" -> new InsertOneModel<>(one.getDocument("document"));
      case "updateOne" -> new UpdateOneModel<>(filter, one.getDocument("update"), new UpdateOptions().upsert(upsert));
      case "updateMany" -> new UpdateManyModel<>(filter, one.getDocument("update"), new UpdateOptions().upsert(upsert));
      case "replaceOne" ->
          new ReplaceOneModel<>(filter, one.getDocument("replacement"), new ReplaceOptions().upsert(upsert));
      case "deleteOne" -> new DeleteOneModel<>(filter);
      case "deleteMany" -> new DeleteManyModel<>(filter);
      default -> throw new Skipped("bulk writes of the kind " + kind);
    };
  }

  @SuppressWarnings("unchecked")
  static BsonValue onCollection(MongoCollection<BsonDocument> c, String name, BsonDocument given, ClientSession session) {
    BsonDocument filter = document(given, "filter");
    BsonDocument change = given.containsKey("update") && given.get("update").isDocument() ? document(given, "update") : null;
    boolean upsert = given.getBoolean("upsert", BsonBoolean.FALSE).getValue();
    boolean ordered = given.getBoolean("ordered", BsonBoolean.TRUE).getValue();
    ReturnDocument returned = "After".equals(text(given, "returnDocument")) ? ReturnDocument.AFTER : ReturnDocument.BEFORE;
    Class<?> type = MongoCollection.class;
    switch (name) {
      case "aggregate" -> {
        var found = (AggregateIterable<BsonDocument>) call(type, c, name, session, stages(given), BsonDocument.class);
        if (given.containsKey("batchSize")) found.batchSize(given.getNumber("batchSize").intValue());
        if (given.containsKey("maxTimeMS")) found.maxTime(given.getNumber("maxTimeMS").longValue(), TimeUnit.MILLISECONDS);
        List<BsonDocument> stages = stages(given);
        String last = stages.isEmpty() ? "" : stages.get(stages.size() - 1).getFirstKey();
        if (!last.equals("$out") && !last.equals("$merge")) return all(found);
        found.toCollection();
        return null;
      }
      case "find", "findOne" -> {
        var found = (FindIterable<BsonDocument>) call(type, c, "find", session, filter, BsonDocument.class);
        if (given.containsKey("batchSize")) found.batchSize(given.getNumber("batchSize").intValue());
        if (given.containsKey("limit")) found.limit(given.getNumber("limit").intValue());
        if (given.containsKey("sort")) found.sort(given.getDocument("sort"));
        return name.equals("find") ? all(found) : found.first();
      }
      case "bulkWrite" -> {
        List<WriteModel<BsonDocument>> models = new ArrayList<>();
        given.getArray("requests").forEach(request -> models.add(model(request.asDocument())));
        return result((BulkWriteResult) call(type, c, name, session, models, new BulkWriteOptions().ordered(ordered)));
      }
      case "countDocuments" -> {
        return new BsonInt64((long) call(type, c, name, session, filter));
      }
      case "estimatedDocumentCount" -> {
        return new BsonInt64(c.estimatedDocumentCount());
      }
      case "createIndex" -> {
        IndexOptions options = new IndexOptions().name(text(given, "name"));
        return new BsonString((String) call(type, c, name, session, given.getDocument("keys"), options));
      }
      case "dropIndex" -> call(type, c, name, session, text(given, "name"));
      case "deleteOne", "deleteMany" -> {
        DeleteResult done = (DeleteResult) call(type, c, name, session, filter);
        return new BsonDocument("deletedCount", new BsonInt64(done.getDeletedCount()));
      }
      case "distinct" -> {
        return all(call(type, c, name, session, text(given, "fieldName"), filter, BsonValue.class));
      }
      case "findOneAndDelete" -> {
        var options = new FindOneAndDeleteOptions().sort(given.getDocument("sort", null));
        return (BsonDocument) call(type, c, name, session, filter, options);
      }
      case "findOneAndReplace" -> {
        var options = new FindOneAndReplaceOptions().upsert(upsert).returnDocument(returned).sort(given.getDocument("sort", null));
        return (BsonDocument) call(type, c, name, session, filter, given.getDocument("replacement"), options);
      }
      case "findOneAndUpdate" -> {
        var options = new FindOneAndUpdateOptions().upsert(upsert).returnDocument(returned).sort(given.getDocument("sort", null));
        return (BsonDocument) call(type, c, name, session, filter, change, options);
      }
      case "insertMany" -> {
        List<BsonDocument> documents = new ArrayList<>();
        given.getArray("documents").forEach(one -> documents.add(one.asDocument()));
        var options = new InsertManyOptions().ordered(ordered);
        BsonDocument ids = new BsonDocument();
        ((InsertManyResult) call(type, c, name, session, documents, options))
            .getInsertedIds()
            .forEach((at, id) -> ids.append(String.valueOf(at), id));
        return new BsonDocument("insertedIds", ids);
      }
      case "insertOne" -> {
        InsertOneResult done = (InsertOneResult) call(type, c, name, session, given.getDocument("document"));
        return done.wasAcknowledged() ? new BsonDocument("insertedId", done.getInsertedId()) : new BsonDocument();
      }
      case "listIndexes" -> {
        return all(call(type, c, name, session, BsonDocument.class));
      }
      case "listIndexNames" -> all(call(type, c, "listIndexes", session, BsonDocument.class));
      case "rename" -> {
        MongoNamespace to = new MongoNamespace(c.getNamespace().getDatabaseName(), text(given, "to"));
        var options = new RenameCollectionOptions().dropTarget(given.getBoolean("dropTarget", BsonBoolean.FALSE).getValue());
        call(type, c, "renameCollection", session, to, options);
      }
      case "replaceOne" -> {
        var options = new ReplaceOptions().upsert(upsert);
        return result((UpdateResult) call(type, c, name, session, filter, given.getDocument("replacement"), options));
      }
      case "updateMany", "updateOne" -> {
        return result((UpdateResult) call(type, c, name, session, filter, change, new UpdateOptions().upsert(upsert)));
      }
      default -> throw new Skipped(name + " on a collection");
    }
    return null;
  }

  static BsonValue onDatabase(MongoDatabase d, String name, BsonDocument given, ClientSession session) {
    Class<?> type = MongoDatabase.class;
    switch (name) {
      case "aggregate" -> {
        return all(call(type, d, name, session, stages(given), BsonDocument.class));
      }
      case "createCollection" -> {
        if (given.containsKey("viewOn")) throw new Skipped("views");
        call(type, d, name, session, text(given, "collection"));
        return null;
      }
      case "dropCollection" -> {
        d.getCollection(text(given, "collection")).drop();
        return null;
      }
      case "listCollectionNames" -> {
        return all(call(type, d, name, session));
      }
      case "listCollections" -> {
        return all(call(type, d, name, session, BsonDocument.class));
      }
      case "runCommand" -> {
        BsonDocument command = given.getDocument("command");
        if (!given.containsKey("readPreference")) return (BsonDocument) call(type, d, name, session, command, BsonDocument.class);
        return (BsonDocument) call(type, d, name, session, command, readPreference(given), BsonDocument.class);
      }
      default -> throw new Skipped(name + " on a database");
    }
  }

  static BsonValue onSession(ClientSession session, String name, BsonDocument given, Entities entities) {
    switch (name) {
      case "abortTransaction" -> session.abortTransaction();
      case "commitTransaction" -> session.commitTransaction();
      case "endSession" -> session.close();
      case "startTransaction" -> session.startTransaction(ofTransaction(given));
      case "withTransaction" ->
          session.withTransaction(
              () -> {
                for (BsonValue inner : given.getArray("callback")) step(inner.asDocument(), entities, true);
                return null;
              },
              ofTransaction(given));
      default -> throw new Skipped(name + " on a session");
    }
    return null;
  }

  static BsonValue onBucket(GridFSBucket bucket, String name, BsonDocument given) {
    try {
      return switch (name) {
        case "download" -> new BsonBinary(bucket.openDownloadStream(given.get("id")).readAllBytes());
        case "downloadByName" -> new BsonBinary(bucket.openDownloadStream(text(given, "filename")).readAllBytes());
        default -> throw new Skipped(name + " on a bucket");
      };
    } catch (IOException e) {
      throw new Failed(e.toString());
    }
  }

  static MongoCursor<BsonDocument> watch(Class<?> type, Object target, BsonDocument given) {
    var stream = (ChangeStreamIterable<?>) call(type, target, "watch", null, stages(given), BsonDocument.class);
    if (given.containsKey("batchSize")) stream.batchSize(given.getNumber("batchSize").intValue());
    if (given.containsKey("comment")) stream.comment(given.get("comment"));
    if (given.containsKey("showExpandedEvents")) stream.showExpandedEvents(given.getBoolean("showExpandedEvents").getValue());
    if (given.containsKey("fullDocument")) stream.fullDocument(FullDocument.fromString(text(given, "fullDocument")));
    if (given.containsKey("fullDocumentBeforeChange")) {
      stream.fullDocumentBeforeChange(FullDocumentBeforeChange.fromString(text(given, "fullDocumentBeforeChange")));
    }
    return stream.withDocumentClass(BsonDocument.class).iterator();
  }

  // Operations on the runner itself.
  static void onRunner(String name, BsonDocument given, Entities entities) {
    switch (name) {
      case "failPoint" -> {
        BsonDocument point = given.getDocument("failPoint");
        MongoClient of = (MongoClient) entities.get(text(given, "client"));
        of.getDatabase("admin").runCommand(point);
        entities.failPoints.add(point.get("configureFailPoint"));
      }
      case "createEntities" -> given.getArray("entities").forEach(one -> entities.create(one.asDocument()));
      case "assertSessionUnpinned" -> {}
      case "assertSameLsidOnLastTwoCommands", "assertDifferentLsidOnLastTwoCommands" -> {
        List<Event> started = new ArrayList<>(entities.events.get(text(given, "client")));
        started.removeIf(event -> event.command == null);
        int count = started.size();
        boolean same = started.get(count - 1).command.get("lsid").equals(started.get(count - 2).command.get("lsid"));
        if (same != name.startsWith("assertSame")) throw new Failed("two commands have the same lsid: " + same);
      }
      case "assertSessionDirty", "assertSessionNotDirty" -> {
        boolean dirty = ((ClientSession) entities.get(text(given, "session"))).getServerSession().isMarkedDirty();
        if (dirty != name.equals("assertSessionDirty")) throw new Failed("the session is dirty: " + dirty);
      }
      case "assertCollectionExists", "assertCollectionNotExists" -> {
        MongoDatabase of = client.getDatabase(text(given, "databaseName"));
        boolean exists = of.listCollectionNames().into(new ArrayList<>()).contains(text(given, "collectionName"));
        if (exists != name.equals("assertCollectionExists")) throw new Failed("the collection exists: " + exists);
      }
      case "assertIndexExists", "assertIndexNotExists" -> {
        var of = client.getDatabase(text(given, "databaseName")).getCollection(text(given, "collectionName"), BsonDocument.class);
        BsonString index = given.getString("indexName");
        boolean exists = all(of.listIndexes(BsonDocument.class)).stream().anyMatch(one -> one.asDocument().get("name").equals(index));
        if (exists != name.equals("assertIndexExists")) throw new Failed("the index exists: " + exists);
      }
      default -> throw new Skipped(name + " of the runner");
    }
  }

  @SuppressWarnings("unchecked")
  static BsonValue run(BsonDocument operation, Entities entities) {
    String object = text(operation, "object"), name = text(operation, "name");
    BsonDocument given = document(operation, "arguments");
    if (object.equals("testRunner")) {
      onRunner(name, given, entities);
      return null;
    }
    Object target = entities.get(object);
    String id = text(given, "session");
    ClientSession session = id == null ? null : (ClientSession) entities.get(id);
    boolean watches = name.equals("createChangeStream");
    MongoCursor<BsonDocument> stream = null;
    BsonValue result = null;
    if (target instanceof MongoCollection<?> c) {
      if (watches) stream = watch(MongoCollection.class, c, given);
      else result = onCollection((MongoCollection<BsonDocument>) c, name, given, session);
    } else if (target instanceof MongoDatabase d) {
      if (watches) stream = watch(MongoDatabase.class, d, given);
      else result = onDatabase(d, name, given, session);
    } else if (target instanceof MongoClient of) {
      if (watches) stream = watch(MongoClient.class, of, given);
      else if (name.equals("listDatabaseNames")) all(call(MongoClient.class, of, name, session));
      else if (name.equals("listDatabases")) result = all(call(MongoClient.class, of, name, session, BsonDocument.class));
      else throw new Skipped(name + " on a client");
    } else if (target instanceof ClientSession of) {
      result = onSession(of, name, given, entities);
    } else if (target instanceof GridFSBucket bucket) {
      result = onBucket(bucket, name, given);
    } else if (target instanceof MongoCursor<?> cursor) {
      if (name.equals("close")) cursor.close();
      else result = (BsonDocument) cursor.next();
    }
    if (stream != null) {
      String as = text(operation, "saveResultAsEntity");
      entities.all.put(as == null ? "stream " + entities.all.size() : as, stream);
    }
    return result;
  }

  static void checkError(BsonDocument expected, RuntimeException error, Entities entities) {
    if (expected.containsKey("isClientError")) {
      boolean found = error instanceof MongoClientException || error instanceof MongoSocketException || !(error instanceof MongoException);
      if (found != expected.getBoolean("isClientError").getValue()) throw new Failed("isClientError is " + found + ": " + error);
    }
    String part = text(expected, "errorContains");
    if (part != null && !String.valueOf(error.getMessage()).toLowerCase().contains(part.toLowerCase())) {
      throw new Failed("'" + part + "' is not in '" + error.getMessage() + "'");
    }
    if (expected.containsKey("errorCode")) {
      match(expected.get("errorCode"), new BsonInt32(((MongoException) error).getCode()), entities, "code", false);
    }
    if (expected.containsKey("errorCodeName")) {
      String name = "";
      if (error instanceof MongoCommandException command) name = command.getErrorCodeName();
      // A class of its own, without the name.
      if (error instanceof MongoExecutionTimeoutException) name = "MaxTimeMSExpired";
      if (error instanceof MongoWriteConcernException concern) name = concern.getWriteConcernError().getCodeName();
      match(expected.get("errorCodeName"), new BsonString(name), entities, "codeName", false);
    }
    for (String list : List.of("errorLabelsContain", "errorLabelsOmit")) {
      for (BsonValue label : expected.getArray(list, new BsonArray())) {
        boolean has = error instanceof MongoException of && of.hasErrorLabel(label.asString().getValue());
        if (has != list.equals("errorLabelsContain")) throw new Failed("the label " + label.asString().getValue() + ": " + has);
      }
    }
    if (expected.containsKey("expectResult") && error instanceof MongoBulkWriteException bulk) {
      match(expected.get("expectResult"), result(bulk.getWriteResult()), entities, "result", true);
    }
  }

  // Runs an operation and checks its result. `rethrows` lets an error leave a callback of `withTransaction`.
  static void step(BsonDocument operation, Entities entities, boolean rethrows) {
    BsonValue result;
    try {
      result = run(operation, entities);
    } catch (Skipped | Failed e) {
      throw e;
    } catch (RuntimeException e) {
      if (operation.containsKey("expectError")) {
        checkError(operation.getDocument("expectError"), e, entities);
        if (rethrows) throw e;
        return;
      }
      if (operation.containsKey("ignoreResultAndError")) return;
      throw e;
    }
    if (operation.containsKey("expectError")) throw new Failed(text(operation, "name") + " has no error");
    if (operation.containsKey("expectResult")) {
      match(operation.get("expectResult"), result, entities, text(operation, "name"), true);
    }
  }

  static Failed unequal(String path, BsonValue expected, BsonValue actual) {
    return new Failed(path + ": expected " + expected + ", found " + actual);
  }

  static boolean isOfType(BsonValue value, String name) {
    if (value == null) return false;
    String found =
        switch (value.getBsonType()) {
          case INT32 -> "int";
          case INT64 -> "long";
          case BOOLEAN -> "bool";
          case BINARY -> "binData";
          case DOCUMENT -> "object";
          case OBJECT_ID -> "objectId";
          case DATE_TIME -> "date";
          default -> value.getBsonType().name().toLowerCase();
        };
    return found.equals(name) || (name.equals("long") && found.equals("int"));
  }

  // Handles an object with one operator such as `$$exists`; false if it is none.
  static boolean matchSpecial(BsonDocument expected, BsonValue actual, Entities entities, String path, boolean isRoot) {
    if (expected.size() != 1 || !expected.getFirstKey().startsWith("$$")) return false;
    BsonValue argument = expected.get(expected.getFirstKey());
    boolean holds =
        switch (expected.getFirstKey()) {
          case "$$exists" -> (actual != null) == argument.asBoolean().getValue();
          case "$$unsetOrMatches" -> {
            if (actual != null && !actual.isNull()) match(argument, actual, entities, path, isRoot);
            yield true;
          }
          case "$$type" -> {
            BsonArray types = argument.isArray() ? argument.asArray() : new BsonArray(List.of(argument));
            yield types.stream().anyMatch(type -> isOfType(actual, type.asString().getValue()));
          }
          case "$$sessionLsid" -> entities.lsids.get(argument.asString().getValue()).equals(actual);
          case "$$matchesHexBytes" -> {
            StringBuilder hex = new StringBuilder();
            for (byte one : actual.asBinary().getData()) hex.append(String.format("%02x", one));
            yield hex.toString().equals(argument.asString().getValue());
          }
          default -> throw new Skipped("operator " + expected.getFirstKey());
        };
    if (!holds) throw unequal(path, expected, actual);
    return true;
  }

  // Fails if `actual` does not match. Only a root document may have fields that are not expected.
  static void match(BsonValue expected, BsonValue actual, Entities entities, String path, boolean isRoot) {
    // The driver compares with an ObjectId without an operator.
    boolean isEquality = expected.isDocument() && expected.asDocument().containsKey("$eq");
    if (isEquality && actual != null && !actual.isDocument()) expected = expected.asDocument().get("$eq");
    if (expected.isDocument() && matchSpecial(expected.asDocument(), actual, entities, path, isRoot)) return;
    if (expected.isNull() && (actual == null || actual.isNull())) return;
    if (actual == null) throw unequal(path, expected, null);
    if (expected.isArray()) {
      if (!actual.isArray() || actual.asArray().size() != expected.asArray().size()) throw unequal(path, expected, actual);
      for (int at = 0; at < expected.asArray().size(); at++) {
        match(expected.asArray().get(at), actual.asArray().get(at), entities, path + "[" + at + "]", isRoot);
      }
    } else if (expected.isNumber()) {
      boolean equal = actual.isNumber() && actual.asNumber().doubleValue() == expected.asNumber().doubleValue();
      if (!equal) throw unequal(path, expected, actual);
    } else if (expected.isDocument()) {
      if (!actual.isDocument()) throw unequal(path, expected, actual);
      BsonDocument one = expected.asDocument(), other = actual.asDocument();
      one.forEach((name, value) -> match(value, other.get(name), entities, path + "." + name, false));
      if (!isRoot && !one.keySet().containsAll(other.keySet())) throw unequal(path, expected, actual);
    } else if (!expected.equals(actual)) {
      throw unequal(path, expected, actual);
    }
  }

  static void checkEvents(BsonDocument expected, Entities entities) {
    if (expected.containsKey("eventType") && !text(expected, "eventType").equals("command")) {
      throw new Skipped("events of another type");
    }
    List<Event> seen = new ArrayList<>(entities.events.get(text(expected, "client")));
    BsonArray events = expected.getArray("events");
    boolean ignores = expected.getBoolean("ignoreExtraEvents", BsonBoolean.FALSE).getValue();
    if (ignores ? seen.size() < events.size() : seen.size() != events.size()) {
      throw new Failed("expected " + events.size() + " events, found " + seen.stream().map(Event::name).toList());
    }
    for (int at = 0; at < events.size(); at++) {
      BsonDocument event = events.get(at).asDocument();
      String kind = event.getFirstKey();
      Event found = seen.get(at);
      if (!kind.equals(found.kind)) throw new Failed("event " + at + ": expected " + kind + ", found " + found.kind);
      BsonDocument fields = event.getDocument(kind);
      String path = "event " + at;
      if (fields.containsKey("command")) match(fields.get("command"), found.command, entities, path, true);
      if (fields.containsKey("reply")) match(fields.get("reply"), found.reply, entities, path, true);
      for (Map.Entry<String, String> name : Map.of("commandName", found.name, "databaseName", String.valueOf(found.database)).entrySet()) {
        if (fields.containsKey(name.getKey())) match(fields.get(name.getKey()), new BsonString(name.getValue()), entities, path, false);
      }
    }
  }

  static void prepare(BsonDocument file) {
    admin(new BsonDocument("killAllSessions", new BsonArray()));
    for (BsonValue value : file.getArray("initialData", new BsonArray())) {
      BsonDocument data = value.asDocument();
      MongoDatabase database = client.getDatabase(text(data, "databaseName"));
      BsonString name = data.getString("collectionName");
      database.getCollection(name.getValue()).drop();
      BsonDocument create = new BsonDocument("create", name);
      create.putAll(document(data, "createOptions"));
      database.runCommand(create);
      List<BsonDocument> documents = new ArrayList<>();
      data.getArray("documents").forEach(one -> documents.add(one.asDocument()));
      if (!documents.isEmpty()) database.getCollection(name.getValue(), BsonDocument.class).insertMany(documents);
    }
  }

  static void runTest(BsonDocument file, BsonDocument test) {
    if (LEFT_OUT.contains(text(test, "description"))) throw new Skipped("left out");
    if (test.containsKey("skipReason")) throw new Skipped(text(test, "skipReason"));
    if (!meets(file) || !meets(test)) throw new Skipped("requirements");
    prepare(file);
    Entities entities = new Entities();
    try {
      file.getArray("createEntities", new BsonArray()).forEach(one -> entities.create(one.asDocument()));
      test.getArray("operations").forEach(one -> step(one.asDocument(), entities, false));
      test.getArray("expectEvents", new BsonArray()).forEach(one -> checkEvents(one.asDocument(), entities));
      for (BsonValue value : test.getArray("outcome", new BsonArray())) {
        BsonDocument outcome = value.asDocument();
        var of = client.getDatabase(text(outcome, "databaseName")).getCollection(text(outcome, "collectionName"), BsonDocument.class);
        BsonArray found = all(of.find().sort(new BsonDocument("_id", new BsonInt32(1))));
        match(outcome.get("documents"), found, entities, "outcome", false);
      }
    } finally {
      entities.close();
    }
  }

  static final ExecutorService TESTS = Executors.newCachedThreadPool(task -> {
    Thread thread = new Thread(task);
    thread.setDaemon(true);
    return thread;
  });

  // Runs a test; returns its error, "" if there is none, and null if it was skipped.
  static String outcome(BsonDocument file, BsonDocument test) throws InterruptedException {
    Future<?> running = TESTS.submit(() -> runTest(file, test));
    Throwable error;
    try {
      running.get(TEST_SECONDS_MAX, TimeUnit.SECONDS);
      return "";
    } catch (TimeoutException e) {
      running.cancel(true);
      return "took more than " + TEST_SECONDS_MAX + " s";
    } catch (ExecutionException e) {
      error = e.getCause();
    }
    if (error instanceof Skipped) {
      if (System.getenv("VERBOSE") != null) System.out.println("# skipped " + text(test, "description") + ": " + error.getMessage());
      return null;
    }
    String reason = String.valueOf(error instanceof Failed ? error.getMessage() : error).replaceAll("\\s+", " ");
    return reason.substring(0, Math.min(reason.length(), REASON_CHARS_MAX));
  }

  public static void main(String[] arguments) throws Exception {
    client = MongoClients.create(URI);
    version = admin(new BsonDocument("buildInfo", new BsonInt32(1))).getString("version").getValue();
    parameters = admin(new BsonDocument("getParameter", new BsonString("*")));
    Path tests = unpacked();
    for (Map.Entry<String, String> folder : FOLDERS.entrySet()) {
      int count = 0;
      List<Path> files;
      try (Stream<Path> listed = Files.list(tests.resolve(folder.getValue()))) {
        files = listed.sorted().toList();
      }
      for (Path path : files) {
        BsonDocument file = BsonDocument.parse(Files.readString(path));
        for (BsonValue test : file.getArray("tests")) {
          String name = path.getFileName().toString().replace(".json", "");
          String check = folder.getKey() + "::" + name + "::" + text(test.asDocument(), "description");
          String error = outcome(file, test.asDocument());
          if (error == null) continue;
          check = check.replace(": ", ":");
          System.out.println(error.isEmpty() ? "ok " + check : "not ok " + check + ": " + error);
          count += 1;
        }
      }
      System.out.println(count > 0 ? "ok " + folder.getKey() : "not ok " + folder.getKey() + ": no test ran");
    }
    client.close();
  }

  // Returns the folder of the tests.
  static Path unpacked() throws IOException, InterruptedException {
    Path archive;
    try (Stream<Path> listed = Files.list(Path.of("target"))) {
      archive = listed.filter(one -> one.getFileName().toString().matches("pymongo-.*\\.tar\\.gz")).findFirst().orElseThrow();
    }
    String name = archive.getFileName().toString();
    Path folder = Path.of("target", name.replace(".tar.gz", ""), "test");
    if (!Files.exists(folder)) {
      new ProcessBuilder("tar", "xzf", name).directory(Path.of("target").toFile()).start().waitFor();
    }
    return folder;
  }
}
