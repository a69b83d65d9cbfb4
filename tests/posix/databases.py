# SPDX-License-Identifier: Apache-2.0
"""SQLite in every journal mode, with writers beside each other and writers that are killed; PostgreSQL with checksums."""
import glob
import os
import pwd
import signal
import sqlite3
import subprocess
import sys
import time

from case import Case, Missing, check, drop_caches, run

JOURNALS = ["delete", "truncate", "persist", "memory", "wal", "off"]
PAIR = 1000  # what the two rows of a transaction add up to

WRITER = """
import random, sqlite3, sys
path, journal, seed, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
rng = random.Random(seed)
db = sqlite3.connect(path, timeout=60, isolation_level=None)
db.execute(f"pragma journal_mode={journal}")
for number in range(count):
    db.execute("begin immediate")
    value = rng.randrange(1000)
    for part in (value, 1000 - value):
        db.execute("insert into t(writer, number, part, filler) values (?, ?, ?, ?)",
                   (seed, number, part, rng.randbytes(rng.choice([10, 300, 5000]))))
    if number % 7 == 0:
        db.execute("delete from t where writer = ? and number = ?", (seed, number - 5))
    db.execute("commit")
    print(number, flush=True)
"""


def writer(path, journal, seed, count):
    return subprocess.Popen([sys.executable, "-c", WRITER, path, journal, str(seed), str(count)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, text=True)


def look(path):
    """Checks the database; the transactions of each writer in it."""
    db = sqlite3.connect(path, timeout=60)
    check(db.execute("pragma integrity_check").fetchall() == [("ok",)], f"integrity of {path}")
    halves = db.execute("select writer, number from t group by writer, number having count(*) != 2 or sum(part) != ?",
                        (PAIR,)).fetchall()
    check(halves == [], f"{path} has half a transaction: {halves[:5]}")
    found = {}
    for name, number in db.execute("select distinct writer, number from t"):
        found.setdefault(name, set()).add(number)
    db.close()
    return found


def expected(count):
    gone = {number - 5 for number in range(count) if number % 7 == 0}
    return {number for number in range(count)} - gone


def new_database(path, journal):
    db = sqlite3.connect(path)
    got = db.execute(f"pragma journal_mode={journal}").fetchone()[0]
    check(got == journal, f"journal mode {got} in place of {journal}")
    db.execute("create table t(id integer primary key, writer text, number int, part int, filler blob)")
    db.execute("create index i on t(writer, number)")
    db.commit()
    db.close()


def sqlite(journal, count, kills):
    def work(case):
        path = os.path.join(case.mnt, "db")
        new_database(path, journal)
        writers = [writer(path, journal, seed, count) for seed in ("a", "b", "c")]
        for each in writers:
            each.communicate()
            check(each.returncode == 0, f"a writer ended with {each.returncode}")
        drop_caches()
        check(look(path) == {seed: expected(count) for seed in ("a", "b", "c")}, "other transactions than were made")
        # a writer that is killed: what it said is there, and no half of what it did not; the modes that promise it
        for number in range(kills if journal in ("delete", "truncate", "persist", "wal") else 0):
            each, last = writer(path, journal, f"killed{number}", 10_000), -1
            while last < case.rng.randrange(3, 40):
                last = int(each.stdout.readline())
            time.sleep(case.rng.random() * 0.01)
            each.send_signal(signal.SIGKILL)
            rest = each.communicate()[0].split()
            last = int(rest[-1]) if rest else last
            found = look(path)[f"killed{number}"]
            check(expected(last + 1) - {last - 4} <= found | {max(last - 4, 0)}, f"a transaction that was told is lost: {last}")
        run(sys.executable, "-c", f"import sqlite3; sqlite3.connect({path!r}, isolation_level=None).execute('vacuum')")
        look(path)
    return work


# --- PostgreSQL ------------------------------------------------------------------------------------------------------

def postgres_folder():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not found or not os.path.exists(os.path.join(found[-1], "pg_amcheck")):
        raise Missing("postgresql")
    return found[-1]


class Server:
    """A cluster on the mount, as the user postgres; its socket is in the plain folder."""

    def __init__(self, case):
        self.bin = postgres_folder()
        self.user = pwd.getpwnam("postgres")
        self.data, self.sockets = os.path.join(case.mnt, "cluster"), case.plain
        for folder in (case.mnt, case.plain):
            os.chown(folder, self.user.pw_uid, self.user.pw_gid)

    def do(self, program, *args, **kwargs):
        return run(os.path.join(self.bin, program), *args, user=self.user.pw_uid, group=self.user.pw_gid, extra_groups=[],
                   cwd=self.sockets, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PGHOST": self.sockets,
                                          "PGUSER": "postgres", "PGDATABASE": "postgres", "HOME": self.sockets}, **kwargs)

    def start(self):
        self.do("pg_ctl", "-D", self.data, "-w", "-t", "60", "-l", os.path.join(self.sockets, "log"), "-o",
                f"-c listen_addresses= -c unix_socket_directories={self.sockets} -c fsync=on -c full_page_writes=on "
                "-c max_wal_size=128MB -c checkpoint_timeout=30s", "start")

    def stop(self, how):
        self.do("pg_ctl", "-D", self.data, "-w", "-t", "60", "-m", how, "stop")

    def ask(self, question):
        return self.do("psql", "-AtXqc", question).strip()


CHECKED = "select sum(abalance) = (select sum(bbalance) from pgbench_branches) and sum(abalance) = " \
    "(select sum(tbalance) from pgbench_tellers) from pgbench_accounts"


def postgres(rounds, seconds):
    """pgbench, an immediate stop under load, recovery, amcheck; at the end every page's checksum."""
    def work(case):
        server = Server(case)
        server.do("initdb", "-D", server.data, "--data-checksums", "-A", "trust", "-U", "postgres")
        server.start()
        try:
            check(server.ask("show data_checksums") == "on", "no checksums")
            server.do("pgbench", "-i", "-q", "-s", "5")
            for number in range(rounds):
                load = subprocess.Popen([os.path.join(server.bin, "pgbench"), "-n", "-c", "4", "-j", "2", "-T", str(seconds * 3),
                                         "-h", server.sockets, "-U", "postgres", "postgres"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, user=server.user.pw_uid,
                                        cwd=server.sockets)
                time.sleep(seconds)
                done = int(server.ask("select count(*) from pgbench_history"))
                server.stop("immediate")
                load.communicate(timeout=60)
                server.start()
                check(int(server.ask("select count(*) from pgbench_history")) >= done > 0, "transactions are lost")
                check(server.ask(CHECKED) == "t", f"sums differ after stop {number}")
                server.do("pg_amcheck", "--all", "--install-missing", "--heapallindexed", "--parent-check", timeout=200)
            server.do("pgbench", "-n", "-c", "4", "-T", str(seconds))
            check(server.ask(CHECKED) == "t", "sums differ")
            server.ask("vacuum full analyze")
        finally:
            server.stop("fast")
        drop_caches()
        check("Bad checksums:  0" in server.do("pg_checksums", "--check", "-D", server.data), "checksums")
    return work


def cases(quick):
    count, kills = (25, 1) if quick else (200, 10)
    found = [Case(f"sqlite-{journal}", sqlite(journal, count, kills)) for journal in JOURNALS]
    if not quick:
        found.append(Case("postgres", postgres(3, 10), 500))
    return found
