"""What Redis does for an engine: one script, so that each request is one step there.

Keys of a name: a sorted set ``line`` of tokens by number, and a hash ``data``: of each token ``e``
(when its lease ends, by the server's clock in ms), ``i`` (room, client, record) and ``t`` (whether
it was told that it holds).  All expire if they are not renewed.
"""

SCRIPT = r"""
local op, ttl, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

local function whole(n) return string.format('%.0f', n) end

local function drop(Z, H, k)
  redis.call('HDEL', H, 'e' .. k, 'i' .. k, 't' .. k)
  return redis.call('ZREM', Z, k)
end

local function ends(H, k) return tonumber(redis.call('HGET', H, 'e' .. k) or '0') end

local function tell(H, k, number)
  local client = string.match(redis.call('HGET', H, 'i' .. k), '^%d+\n([^\n]*)')
  redis.call('PUBLISH', prefix .. ':news:' .. client, k .. ' ' .. number)
end

-- Take out what is over, and tell those that hold now, but not the entry that asks.
local function settle(Z, H, own)
  local held, count, most, at, soonest = {}, 0, math.huge, 0, math.huge
  while true do
    local some = redis.call('ZRANGE', Z, at, at + 49, 'WITHSCORES')
    if #some == 0 then return held, soonest end
    for i = 1, #some, 2 do
      local k, number = some[i], whole(tonumber(some[i + 1]))
      local v = redis.call('HMGET', H, 'e' .. k, 'i' .. k, 't' .. k)
      local over = tonumber(v[1] or '0')
      if over <= now then
        drop(Z, H, k)
      else
        most = math.min(most, tonumber(string.match(v[2], '^%d+')))
        if count + 1 > most then return held, soonest end
        count, at = count + 1, at + 1
        held[k] = number
        soonest = math.min(soonest, over)
        if not v[3] then
          redis.call('HSET', H, 't' .. k, '1')
          if k ~= own then tell(H, k, number) end
        end
      end
    end
  end
end

local function place(Z, H, k, held, soonest)
  local number = redis.call('ZSCORE', Z, k)
  if not number then return {3, '0', -1} end
  number = whole(tonumber(number))
  if held[k] then return {1, number, -1} end
  local again = soonest
  while true do
    local before = redis.call('ZRANK', Z, k)
    if before == 0 then break end
    local other = redis.call('ZRANGE', Z, before - 1, before - 1)[1]
    if held[other] then break end
    again = ends(H, other)
    if again > now then break end
    drop(Z, H, other)  -- a waiter that died: settle comes only to those before it
    again = soonest
  end
  return {2, number, math.max(0, again - now)}
end

local function extend(Z, H, k)
  redis.call('HSET', H, 'e' .. k, whole(now + ttl))
  local keep = math.max(2 * ttl, redis.call('PTTL', Z))
  redis.call('PEXPIRE', Z, keep)
  redis.call('PEXPIRE', H, keep)
end

if op == 'enter' then
  local F, Z, H, k = KEYS[1], KEYS[2], KEYS[3], ARGV[4]
  local known = redis.call('ZSCORE', Z, k)
  if known and ends(H, k) <= now then
    drop(Z, H, k)
    known = false
  end
  if not known then
    if redis.call('EXISTS', prefix .. ':gone:' .. k) == 1 then return {3, '0', -1} end
    -- At least the time, so that it grows even if the last writes are forgotten.
    local number = math.max(micros, tonumber(redis.call('GET', F) or '0') + 1)
    redis.call('SET', F, whole(number))
    redis.call('ZADD', Z, whole(number), k)
    redis.call('HSET', H, 'i' .. k, ARGV[5] .. '\n' .. ARGV[6] .. '\n' .. ARGV[7])
  end
  extend(Z, H, k)
  local held, soonest = settle(Z, H, k)
  if not held[k] and ARGV[8] == '0' then
    drop(Z, H, k)
    return {3, '0', -1}
  end
  return place(Z, H, k, held, soonest)
elseif op == 'leave' then
  local Z, H, k = KEYS[1], KEYS[2], ARGV[4]
  local there = ends(H, k) > now and 1 or 0
  drop(Z, H, k)
  -- A request of this token may still be under way: it must not be taken in later.
  if there == 0 then redis.call('SET', prefix .. ':gone:' .. k, '1', 'PX', 2 * ttl) end
  settle(Z, H, '')
  return there
elseif op == 'renew' then
  local answer = {}
  for i = 4, #ARGV do
    local k, Z, H = ARGV[i], KEYS[2 * (i - 4) + 1], KEYS[2 * (i - 4) + 2]
    if ends(H, k) > now then extend(Z, H, k) end
    local held, soonest = settle(Z, H, k)
    answer[#answer + 1] = place(Z, H, k, held, soonest)
  end
  return answer
elseif op == 'line' then
  local Z, H = KEYS[1], KEYS[2]
  local held = settle(Z, H, '')
  local answer = {}
  local all = redis.call('ZRANGE', Z, 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    local k = all[i]
    local left = ends(H, k) - now
    if left > 0 then
      answer[#answer + 1] = {
        k, whole(tonumber(all[i + 1])), redis.call('HGET', H, 'i' .. k), held[k] and 1 or 0, left
      }
    end
  end
  return answer
elseif op == 'remove' then
  local Z, H, k = KEYS[1], KEYS[2], ARGV[4]
  if ends(H, k) <= now then return 0 end
  tell(H, k, '0')
  drop(Z, H, k)
  settle(Z, H, '')
  return 1
end
"""
