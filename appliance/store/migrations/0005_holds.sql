-- What a start has to know of each reservation that is booked, in a form that
-- is read without its body; hold.go of package store says how it is written. It
-- is NULL for those that are not booked, and empty where it cannot be said: then
-- a start reads the body.
ALTER TABLE reservations ADD COLUMN hold TEXT;

UPDATE reservations SET hold = coalesce(
  CASE WHEN EXISTS (SELECT 1 FROM json_tree(body, '$.placements') WHERE type = 'text'
    AND (value = '=' OR instr(value, char(9)) OR instr(value, char(10)) OR typeof(key) = 'integer' AND (value = '' OR instr(value, ','))))
  THEN '' ELSE (body ->> '$.binding') || char(9)
    || coalesce((SELECT group_concat(key || '=' || value, ',') FROM (SELECT key, value FROM json_each(body, '$.resources') ORDER BY key)), '')
    || coalesce((SELECT group_concat(char(10) || (p.value ->> '$.nodeId')
      || char(9) || coalesce((SELECT group_concat(value, ',') FROM (SELECT value FROM json_each(p.value, '$.devices') ORDER BY id)), '')
      || char(9) || CASE WHEN (p.value -> '$.atoms') IS (p.value -> '$.devices') THEN '='
        ELSE coalesce((SELECT group_concat(value, ',') FROM (SELECT value FROM json_each(p.value, '$.atoms') ORDER BY id)), '') END
      || char(9) || coalesce(p.value ->> '$.cpus', '')
      || char(9) || coalesce(p.value ->> '$.numaNodes', '')
      || char(9) || coalesce((SELECT group_concat(key || '=' || value, ',') FROM (SELECT key, value FROM json_each(p.value, '$.amounts') ORDER BY key)), ''), '')
      FROM (SELECT value FROM json_each(body, '$.placements') ORDER BY id) p), '')
  END, '')
WHERE state IN ('placed', 'active');

-- All of what a start reads, apart from all that ended, in place of the index
-- of what lives.
CREATE INDEX reservations_booked ON reservations(pool_id, id, tenant_id, expires_at, hold) WHERE hold IS NOT NULL;
DROP INDEX reservations_live;
CREATE INDEX reservations_pending ON reservations(queue) WHERE state = 'pending';
