"""What PostgreSQL does for an engine: a table of entries, and functions that are one step each.

The witness of an entry is an advisory lock that its client's session holds: it ends with the
session, at once.  So the table need not survive a crash, which ends all sessions, and is unlogged.
"""

VERSION = 2

# The first keys of the advisory locks: of witnesses, and of names while they are changed.
_WITNESS = 1936026988
_NAME = 1936026989

SCHEMA = f"""
BEGIN;
SELECT pg_advisory_xact_lock({_NAME}, 0);
CREATE SCHEMA IF NOT EXISTS semlock;
CREATE SEQUENCE IF NOT EXISTS semlock.fence;
CREATE SEQUENCE IF NOT EXISTS semlock.witness AS integer CYCLE;
CREATE UNLOGGED TABLE IF NOT EXISTS semlock.entry (
  name text NOT NULL, number bigint NOT NULL, token text NOT NULL UNIQUE, room integer NOT NULL,
  witness integer NOT NULL, client text NOT NULL, record bytea NOT NULL,
  holds boolean NOT NULL DEFAULT false, PRIMARY KEY (name, number));

CREATE OR REPLACE FUNCTION semlock.is_over(its integer, own integer) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN its = own THEN false
              ELSE pg_try_advisory_xact_lock_shared({_WITNESS}, its) END $$;

CREATE OR REPLACE FUNCTION semlock.settle(its_name text, own integer, asks text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE r record; held bigint := 0; most bigint := 9223372036854775807;
BEGIN
  FOR r IN SELECT * FROM semlock.entry e WHERE e.name = its_name ORDER BY e.number LOOP
    IF semlock.is_over(r.witness, own) THEN
      DELETE FROM semlock.entry e WHERE e.token = r.token;
      CONTINUE;
    END IF;
    most := least(most, r.room);
    EXIT WHEN held + 1 > most;
    held := held + 1;
    IF NOT r.holds THEN
      UPDATE semlock.entry e SET holds = true WHERE e.token = r.token;
      IF r.token <> asks THEN
        PERFORM pg_notify('semlock_' || r.client, r.token || ' ' || r.number);
      END IF;
    END IF;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION semlock.enter(
  its_name text, its_token text, its_room integer, its_client text, own integer, its_record bytea,
  waits boolean, OUT state integer, OUT number bigint, OUT behind integer)
LANGUAGE plpgsql AS $$
DECLARE r record; now_at bigint; known bigint; its_witness integer; alone boolean;
BEGIN
  PERFORM pg_advisory_xact_lock({_NAME}, hashtext(its_name));
  SELECT e.number, e.witness INTO known, its_witness
    FROM semlock.entry e WHERE e.token = its_token;
  IF its_witness <> own THEN  -- of a session of this client that has ended
    DELETE FROM semlock.entry e WHERE e.token = its_token;
    known := NULL;
  END IF;
  IF known IS NULL THEN
    -- At least the time, so that it grows even if the last numbers are forgotten in a crash.
    number := nextval('semlock.fence');
    now_at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    IF number < now_at THEN
      PERFORM setval('semlock.fence', now_at);
      number := now_at;
    END IF;
    -- The only entry of its line holds: that is most of them, and needs no second version of it.
    alone := NOT EXISTS (SELECT 1 FROM semlock.entry e WHERE e.name = its_name);
    INSERT INTO semlock.entry
      VALUES (its_name, number, its_token, its_room, own, its_client, its_record, alone);
    IF alone THEN
      state := 1;
      RETURN;
    END IF;
  ELSE
    number := known;
  END IF;
  PERFORM semlock.settle(its_name, own, its_token);
  SELECT e.holds INTO r FROM semlock.entry e WHERE e.token = its_token;
  IF r.holds THEN
    state := 1;
    RETURN;
  ELSIF NOT waits THEN
    DELETE FROM semlock.entry e WHERE e.token = its_token;
    state := 3;
    RETURN;
  END IF;
  state := 2;
  LOOP
    SELECT e.token, e.witness INTO r FROM semlock.entry e
      WHERE e.name = its_name AND e.number < enter.number ORDER BY e.number DESC LIMIT 1;
    EXIT WHEN NOT FOUND;
    behind := r.witness;
    EXIT WHEN NOT semlock.is_over(r.witness, own);
    DELETE FROM semlock.entry e WHERE e.token = r.token;
    behind := NULL;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION semlock.leave(
  its_name text, its_token text, own integer, by_force boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE gone record; next record;
BEGIN
  PERFORM pg_advisory_xact_lock({_NAME}, hashtext(its_name));
  DELETE FROM semlock.entry e WHERE e.token = its_token AND (by_force OR e.witness = own)
    RETURNING e.* INTO gone;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF by_force THEN
    PERFORM pg_notify('semlock_' || gone.client, gone.token || ' 0');
  END IF;
  IF NOT gone.holds THEN  -- the one behind it has another before it now
    SELECT e.token, e.client INTO next FROM semlock.entry e
      WHERE e.name = its_name AND e.number > gone.number AND NOT e.holds ORDER BY e.number LIMIT 1;
    IF FOUND THEN
      PERFORM pg_notify('semlock_' || next.client, next.token || ' 0');
    END IF;
  END IF;
  PERFORM semlock.settle(its_name, own, '');
  RETURN true;
END $$;

CREATE OR REPLACE FUNCTION semlock.line(its_name text, own integer)
RETURNS TABLE (token text, number bigint, room integer, record text, holds boolean)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock({_NAME}, hashtext(its_name));
  PERFORM semlock.settle(its_name, own, '');
  DELETE FROM semlock.entry e WHERE e.name = its_name AND semlock.is_over(e.witness, own);
  RETURN QUERY SELECT e.token, e.number, e.room, encode(e.record, 'hex'), e.holds
    FROM semlock.entry e WHERE e.name = its_name ORDER BY e.number;
END $$;

CREATE OR REPLACE FUNCTION semlock.version() RETURNS integer LANGUAGE sql AS 'SELECT {VERSION}';
COMMIT;
"""  # noqa: S608 - of constants

WITNESS = f"SELECT pg_advisory_lock({_WITNESS}, $1::integer)"
WATCH = (
    f"SELECT pg_advisory_lock_shared({_WITNESS}, $1::integer), "
    f"pg_advisory_unlock_shared({_WITNESS}, $1::integer)"
)
ENTER = "SELECT * FROM semlock.enter($1, $2, $3, $4, $5, $6::bytea, $7)"
LEAVE = "SELECT semlock.leave($1, $2, $3, $4)"
LINE = "SELECT * FROM semlock.line($1, $2)"
RENEW = (
    "SELECT token, number, holds FROM semlock.entry "
    "WHERE token = ANY(string_to_array($1, ',')) AND witness = $2"
)
# What is left of clients that were killed, under names that may never be used again.  Each new
# session looks at some, as the server has room for so many advisory locks of one statement only.
SWEEP = """
DELETE FROM semlock.entry WHERE witness IN (
  SELECT witness
  FROM (SELECT witness FROM semlock.entry GROUP BY witness ORDER BY random() LIMIT 200) AS few
  WHERE semlock.is_over(witness, $1))
"""
NAMES = (
    "SELECT DISTINCT name FROM semlock.entry WHERE starts_with(name, $1) "
    "AND NOT semlock.is_over(witness, $2)"
)

# What is asked for ``semlock doctor``.  This session has changed a setting for itself: the others'
# value is that to which it would be reset.
FACTS = {
    **{
        name: f"(SELECT reset_val FROM pg_settings WHERE name = '{name}')"  # noqa: S608 - as above
        for name in ("server_version", "max_connections", "fsync", "synchronous_commit")
    },
    "used": "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')",
    "standbys": "(SELECT count(*) FROM pg_stat_replication)",
}
