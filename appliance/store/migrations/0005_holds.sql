-- What a start has to know of each reservation that is booked, in a form that
-- is read without its body, apart from all that ended; hold.go of package store
-- says how it is written. The hold is NULL where it cannot be said: then a start
-- reads the body.
CREATE TABLE holds (
  reservation_id TEXT PRIMARY KEY,
  tenant_id      TEXT NOT NULL,
  pool_id        TEXT NOT NULL,
  active         INTEGER NOT NULL,
  expires_at     INTEGER,
  hold           TEXT
) STRICT, WITHOUT ROWID;

INSERT INTO holds (reservation_id, tenant_id, pool_id, active, expires_at, hold)
SELECT id, tenant_id, pool_id, state = 'active', expires_at,
  CASE WHEN EXISTS (SELECT 1 FROM json_tree(body, '$.placements') WHERE type = 'text'
    AND (value = '=' OR instr(value, char(9)) OR instr(value, char(10)) OR typeof(key) = 'integer' AND (value = '' OR instr(value, ','))))
  THEN NULL ELSE (body ->> '$.binding') || char(9)
    || coalesce((SELECT group_concat(key || '=' || value, ',') FROM (SELECT key, value FROM json_each(body, '$.resources') ORDER BY key)), '')
    || coalesce((SELECT group_concat(char(10) || (p.value ->> '$.nodeId')
      || char(9) || coalesce((SELECT group_concat(value, ',') FROM (SELECT value FROM json_each(p.value, '$.devices') ORDER BY id)), '')
      || char(9) || CASE WHEN (p.value -> '$.atoms') IS (p.value -> '$.devices') THEN '='
        ELSE coalesce((SELECT group_concat(value, ',') FROM (SELECT value FROM json_each(p.value, '$.atoms') ORDER BY id)), '') END
      || char(9) || coalesce(p.value ->> '$.cpus', '')
      || char(9) || coalesce(p.value ->> '$.numaNodes', '')
      || char(9) || coalesce((SELECT group_concat(key || '=' || value, ',') FROM (SELECT key, value FROM json_each(p.value, '$.amounts') ORDER BY key)), '')
      || char(9) || CASE WHEN p.value ->> '$.confirmed' THEN 'true' ELSE 'false' END, '')
      FROM (SELECT value FROM json_each(body, '$.placements') ORDER BY id) p), '')
  END
FROM reservations WHERE state IN ('placed', 'active');

CREATE INDEX reservations_pending ON reservations(queue) WHERE state = 'pending';
