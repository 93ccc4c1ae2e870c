"""What the agent does to Redis in one step each. All keys of a script share a hash tag (router/kv/keys.py).

The fence of a unit is the string `EPOCH SEQUENCE`: who may write, and which batch was the last. A writer with another
epoch gets `fenced` where that one is newer; no fence at all, or an older one, is `lost` (Redis was emptied, or a
failover lost our beginning); another sequence than the writer's is `behind` (a failover lost the end). So a retry after
an unknown outcome is never written twice, and a new primary is found out.

No step leaves a key without a time to live.
"""

from __future__ import annotations

from router.kv.client.client import Script

_MINT = """
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local current = tonumber(string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) ') or '0')
local epoch = string.format('%.0f', math.max(now, current + 1, ARGV[2] + 1))
redis.call('SET', KEYS[1], epoch .. ' 0', 'PX', ARGV[1])
local tail = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
return {epoch, tail[1] and tail[1][1] or '0-0', t[1] * 1000 + math.floor(t[2] / 1000)}
"""
MINT = Script(_MINT)
"""KEYS fence, stream; ARGV time to live in ms, the writer's last epoch. Returns the new epoch, the stream's last id and
the time in ms.

Above the writer's own last one too: a new primary's clock may be behind, and may not know of that one."""

_FENCE = """
local epoch, sequence = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%d+)$')
if not epoch then return {'lost', ''} end
if tonumber(epoch) < tonumber(ARGV[1]) then return {'lost', epoch} end
if epoch ~= ARGV[1] then return {'fenced', epoch} end
"""

PUBLISH = Script(
    _FENCE
    + """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if sequence ~= ARGV[2] then
  if sequence ~= ARGV[3] then return {'behind', sequence} end
  local tail = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
  return {'ok', tail[1] and tail[1][1] or '0-0', now}
end
local late = ARGV[6] == '' and 0 or now - ARGV[6]
local id = '0-0'
for i = 8, #ARGV do
  if late > tonumber(ARGV[7]) then
    id = redis.call('XADD', KEYS[2], '*', 'd', ARGV[i], 'l', string.format('%.0f', late))
  else
    id = redis.call('XADD', KEYS[2], '*', 'd', ARGV[i])
  end
end
redis.call('SET', KEYS[1], epoch .. ' ' .. ARGV[3], 'PX', ARGV[5])
redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f', now - ARGV[4]))
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return {'ok', id, now}
"""
)
"""KEYS fence, stream; ARGV epoch, sequence before, sequence after, kept ms, time to live in ms, when the messages were
made (Unix time in ms by this clock; empty where the writer does not know it), delay in ms that is not told, messages.

What comes later than that bears its delay: it may have waited in a link that stalled, also after its writer gave it up.
"""

RENEW = Script(
    _FENCE
    + """
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
for i = 3, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[4]) end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {'ok', ''}
"""
)
"""KEYS fence, lease, others to keep alive; ARGV epoch, lease, lease ms, time to live in ms."""

SWAP = Script(
    _FENCE
    + """
local before = redis.call('GET', KEYS[2]) or ''
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return {'ok', before}
"""
)
"""KEYS fence, pointer, new snapshot; ARGV epoch, new name, time to live in ms. Returns the name before."""

RETIRE = Script(
    _FENCE
    + """
redis.call('DEL', KEYS[2])
redis.call('XADD', KEYS[3], '*', 'd', ARGV[2])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return {'ok', ''}
"""
)
"""KEYS fence, lease, stream; ARGV epoch, message, time to live in ms."""

APPEND = Script(
    """
redis.call('RPUSH', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
)
"""KEYS list; ARGV time to live in ms, chunk."""

RELIEVE = Script(
    _FENCE
    + """
redis.call('UNLINK', KEYS[3], KEYS[4])
local t = redis.call('TIME')
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f', t[1] * 1000 - ARGV[2]))
return {'ok', ''}
"""
)
"""KEYS fence, stream, pointer, snapshot; ARGV epoch, kept ms. None of it takes memory, so a full Redis lets it pass."""

KEEP_FILE = Script(
    """
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('DEL', KEYS[1])
else
  redis.call('RENAME', KEYS[1], KEYS[2])
end
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return 1
"""
)
"""KEYS draft, file; ARGV time to live in ms. Of agents that write one file at once, the first to be done has it."""

ENROL = Script(
    """
local t = redis.call('TIME')
redis.call('ZADD', KEYS[1], t[1], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', t[1] - ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""
)
"""KEYS registry; ARGV unit, seconds after which a silent unit is struck off."""
