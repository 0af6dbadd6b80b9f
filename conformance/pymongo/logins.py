"""Users that log in, through pymongo."""

import os

from pymongo import MongoClient, errors

URI = os.environ["NILOMETER_URI"]
NAME = "conformance_logins"
USER, PASSWORD = "gauge", "p@ss: weir, Ω"


def logged_in(password=PASSWORD, **options):
    return MongoClient(URI, username=USER, password=password, authSource=NAME, **options)


def log_in_by_scram():
    with MongoClient(URI) as client:
        client[NAME].command("createUser", USER, pwd=PASSWORD, roles=["readWrite"])
    for mechanism in ["SCRAM-SHA-1", "SCRAM-SHA-256", None]:
        chosen = {"authMechanism": mechanism} if mechanism else {}
        with logged_in(**chosen) as client:
            told = client.admin.command("connectionStatus")["authInfo"]
            assert told["authenticatedUsers"] == [{"user": USER, "db": NAME}], told
            client[NAME]["levels"].insert_one({"level": 7})
            assert client[NAME]["levels"].find_one()["level"] == 7


def wrong_password():
    with logged_in(password="weir") as client:
        try:
            client[NAME]["levels"].find_one()
            raise AssertionError("no error")
        except errors.OperationFailure as e:
            assert e.code == 18, e
    with MongoClient(URI) as client:
        client[NAME].command("dropUser", USER)
        client.drop_database(NAME)


def run(report):
    for check in [log_in_by_scram, wrong_password]:
        report(check.__name__, check)
