-- A list of more than two in a CHECK is a small table that SQLite builds for
-- every statement: comparisons are not. The body comes last, so that what a row
-- is found and told by does not lie on the pages that a long body overflows to.
CREATE TABLE reservations_new (
  id         TEXT PRIMARY KEY,
  tenant_id  TEXT NOT NULL,
  pool_id    TEXT NOT NULL,
  state      TEXT NOT NULL CHECK (state = 'pending' OR state = 'placed' OR state = 'active' OR state = 'ended' OR state = 'failed'),
  queue      INTEGER NOT NULL, -- order of creation: the sequence number of its first event
  expires_at INTEGER,
  hold       TEXT, -- what a start has to know of a booked one: see hold.go; NULL for others
  body       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO reservations_new (id, tenant_id, pool_id, state, queue, expires_at, hold, body)
  SELECT id, tenant_id, pool_id, state, queue, expires_at, hold, body FROM reservations ORDER BY id;

DROP TABLE reservations;
ALTER TABLE reservations_new RENAME TO reservations;

CREATE INDEX reservations_by_tenant ON reservations(tenant_id, id);
CREATE INDEX reservations_booked ON reservations(pool_id, id, tenant_id, expires_at, hold) WHERE hold IS NOT NULL;
CREATE INDEX reservations_pending ON reservations(queue) WHERE state = 'pending';
