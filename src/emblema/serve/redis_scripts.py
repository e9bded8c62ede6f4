"""What a Redis server does with entries of files: scripts in Lua, each run as a whole.

Below one root lie `entry/OWNER/ID` (a hash), `owned/OWNER` (ids), `used/OWNER` (bytes), `ends` (names by Unix time),
`uploaded` (names that are not read yet), `begun` (chunks by name) and `loose` (bytes that no entry names, by Unix time;
0 where they may go at once). A name is OWNER/ID, and the place of its bytes OWNER/ID/TOKEN.
"""

_TIMED = """
local root = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local function lives(entry)
    local expires = redis.call('HGET', entry, 'expires')
    return expires and (expires == '' or tonumber(expires) > now)
end
"""
_NAMED = (
    _TIMED
    + """
local owner, id = ARGV[1], ARGV[2]
local name = owner .. '/' .. id
local entry, owned, used = root .. '/entry/' .. name, root .. '/owned/' .. owner, root .. '/used/' .. owner
"""
)
# A second call with the same token, after an answer that was lost, changes nothing that matters.
_ADD = """
local size, seconds, quota, token = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[9]), ARGV[10]
local held, own = unpack(redis.call('HMGET', entry, 'bytes', 'token'))
local total = tonumber(redis.call('GET', used) or '0') - tonumber(held or '0') + size
if total > quota then return {0, total, ''} end
local known = lives(entry)
if not known or own == '' then
    if token == '' then return {2, total, ''} end
    if own and own ~= '' then redis.call('ZADD', root .. '/loose', 0, name .. '/' .. own) end
    redis.call('SET', used, string.format('%.0f', total))
    redis.call('ZREM', root .. '/loose', name .. '/' .. token)
    redis.call('SADD', owned, id)
    redis.call('HSET', entry, 'id', id, 'bytes', ARGV[6], 'token', token)
    own = token
end
if not known then
    redis.call('SADD', root .. '/uploaded', name)
    redis.call('HSET', entry, 'status', 'uploaded', 'detail', '', 'kind', '', 'chunks', '[]')
end
if not known or ARGV[8] == '1' then
    local expires = ''
    if seconds == '' then
        redis.call('ZREM', root .. '/ends', name)
    else
        expires = string.format('%.6f', now + tonumber(seconds))
        redis.call('ZADD', root .. '/ends', expires, name)
    end
    redis.call('HSET', entry, 'tenant', ARGV[3], 'name', ARGV[4], 'purpose', ARGV[5], 'expires', expires,
        'created', string.format('%.6f', now))
end
return {1, total, own}
"""
_ENTRY = "if lives(entry) then return redis.call('HGETALL', entry) end return {}"
_ENTRIES = """
local found = {}
for _, id in ipairs(redis.call('SMEMBERS', root .. '/owned/' .. ARGV[1])) do
    local entry = root .. '/entry/' .. ARGV[1] .. '/' .. id
    if lives(entry) then found[#found + 1] = redis.call('HGETALL', entry) end
end
return found
"""
_NOTE = """
if redis.call('EXISTS', entry) == 0 then return 0 end
redis.call('HSET', entry, 'status', ARGV[3], 'detail', ARGV[4], 'kind', ARGV[5], 'chunks', ARGV[6])
redis.call(ARGV[3] == 'uploaded' and 'SADD' or 'SREM', root .. '/uploaded', name)
redis.call('HDEL', root .. '/begun', name)
return 1
"""
_DELETE = """
local chunks, expires, token, size = unpack(redis.call('HMGET', entry, 'chunks', 'expires', 'token', 'bytes'))
if not token then return '' end
if ARGV[3] == '' then
    if lives(entry) then return '' end
elseif chunks ~= ARGV[3] then
    return ''
end
local place = name .. '/' .. token
redis.call('ZADD', root .. '/loose', 0, place)
redis.call('DECRBY', used, size)
redis.call('DEL', entry)
redis.call('SREM', owned, id)
redis.call('ZREM', root .. '/ends', name)
redis.call('SREM', root .. '/uploaded', name)
return place
"""
# Without a token, the next upload brings the bytes again.
_LOSE = """
if redis.call('HGET', entry, 'token') == ARGV[3] then
    redis.call('HSET', entry, 'token', '')
    redis.call('ZADD', root .. '/loose', 0, name .. '/' .. ARGV[3])
end
"""
_KEEP_UNTIL = """
local expires = redis.call('HGET', entry, 'expires')
if expires and expires ~= '' and tonumber(expires) < tonumber(ARGV[3]) then
    redis.call('HSET', entry, 'expires', ARGV[3])
    redis.call('ZADD', root .. '/ends', ARGV[3], name)
end
"""
_UNPROCESSED = """
local found = {}
for _, name in ipairs(redis.call('SMEMBERS', root .. '/uploaded')) do
    local tenant = redis.call('HGET', root .. '/entry/' .. name, 'tenant')
    if tenant then found[#found + 1] = {name, tenant} end
end
return found
"""
_ENDED = """
local found = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', root .. '/ends', '-inf', now)) do
    local tenant, chunks = unpack(redis.call('HMGET', root .. '/entry/' .. name, 'tenant', 'chunks'))
    if tenant then found[#found + 1] = {name, tenant, chunks} end
end
return found
"""
_BEGUN = """
local found, begun = {}, redis.call('HGETALL', root .. '/begun')
for index = 1, #begun, 2 do
    if redis.call('EXISTS', root .. '/entry/' .. begun[index]) == 0 then
        found[#found + 1] = {begun[index], begun[index + 1]}
    end
end
return found
"""
SCRIPTS = {
    "add": _NAMED + _ADD,
    "entry": _NAMED + _ENTRY,
    "entries": _TIMED + _ENTRIES,
    "note": _NAMED + _NOTE,
    "delete": _NAMED + _DELETE,
    "lose": _NAMED + _LOSE,
    "keep_until": _NAMED + _KEEP_UNTIL,
    "unprocessed": _TIMED + _UNPROCESSED,
    "ended": _TIMED + _ENDED,
    "begin": _NAMED + "redis.call('HSET', root .. '/begun', name, ARGV[3])",
    "end": _NAMED + "redis.call('HDEL', root .. '/begun', name)",
    "begun": _TIMED + _BEGUN,
    "loosen": _TIMED + "redis.call('ZADD', root .. '/loose', now, ARGV[1])",
    "loose": _TIMED
    + "return redis.call('ZRANGEBYSCORE', root .. '/loose', '-inf', string.format('%.6f', now - tonumber(ARGV[1])))",
    "dropped": "redis.call('ZREM', KEYS[1] .. '/loose', ARGV[1])",
}
"""Scripts by name, each with the root as its key."""
