-- The law of coordination/rules.py where Redis and Valkey keep the states: one hash for each lock, one call for all
-- commands of that lock. The differential suite keeps this file and rules.py equal; change both together.
--
-- KEYS[1]  the lock.  KEYS[2]  the floor of fences (not on a cluster, where a name that is dropped keeps its fence).
-- ARGV     now in ms ("" is the server's clock), the asker's channel, PUBLISH or SPUBLISH or "", what comes before a
--          channel's name, then the commands: an operation, its claim window and its arguments.
-- Returns  how many wakes could not be published, then for each command {verdict, fence, poisoned, retry, seated,
--          seat, delay, seat, delay, ...}; or only minus the version of a state that was written by a newer law.
--
-- Fields   v fence poison claimant touched writer seats, r:<token> and g:<token> (until when a reader reads, until when
--          an undone token is refused), lease: how many of these there are, the readers' latest end, whether that is
--          exact or only a bound, and a bound of the earliest end. So readers come and go without a scan.

local VERSION, GRAVE = 1, 30000
local GRANTED, HELD, GONE, BURIED, MISMATCH, LATE, EARLY = 1, 2, 3, 4, 5, 6, 7
local WIDTH = {A = 8, N = 2, D = 2, R = 3, U = 1, L = 1, T = 2, F = 0, M = 0, V = 0, P = 1, X = 1}
local NAMES_A_TOKEN = {A = true, N = true, D = true, R = true, U = true}
local CHUNK = 1000

local key, floor = KEYS[1], KEYS[2]
local call, format, match = redis.call, string.format, string.match
local max = math.max

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

if ARGV[5] == '?' then
  return {now, floor and call('GET', floor) or '0', call('HGETALL', key)}
end

-- Load ---------------------------------------------------------------------------------------------------------------

local raw = call('HMGET', key, 'v', 'fence', 'poison', 'claimant', 'touched', 'writer', 'seats', 'lease')

local known = raw[1] and true
if not known and call('EXISTS', key) == 1 then
  return redis.error_reply('WRONGTYPE this key holds something else than a lock')
end
if known and tonumber(raw[1]) > VERSION then return {-tonumber(raw[1])} end

-- The short way, for one who is alone: who comes to a free lock that expects nothing, or leaves as its writer while
-- nobody waits. The same rules as below, without what they do for others.
if known and not raw[7] and not raw[8] then
  local token = ARGV[7]
  if ARGV[5] == 'A' and #ARGV == 14 and not raw[6] and ARGV[13] == '' then
    local fence, ends, found = tonumber(raw[2] or 0), format('%.0f', now + ARGV[9]), raw[3] == '1' and 1 or 0
    local touched = format('%.0f', now)
    if ARGV[8] == 'w' then
      fence = fence + 1
      if found == 1 then call('HDEL', key, 'poison') end
      local packed = touched .. ' ' .. ends .. ' ' .. found .. ' ' .. #token .. ' ' .. token .. ARGV[14]
      call('HSET', key, 'writer', packed, 'fence', format('%.0f', fence), 'touched', touched)
    else
      call('HSET', key, 'r:' .. token, ends, 'lease', '1 0 ' .. ends .. ' 1 ' .. ends, 'touched', touched)
    end
    return {0, {GRANTED, fence, found, 0, 0}}
  end
  if ARGV[5] == 'R' and #ARGV == 9 and raw[6] and ARGV[8] == '0' and ARGV[9] == 'clear' then
    local ends, size, rest = match(raw[6], '^%d+ (%d+) %d (%d+) (.*)$')
    if rest:sub(1, tonumber(size)) == token and tonumber(ends) > now then
      call('HDEL', key, 'writer')
      call('HSET', key, 'touched', format('%.0f', now))
      return {0, {GRANTED, tonumber(raw[2] or 0), 0, 0, 0}}
    end
  end
end

local fence = tonumber(raw[2]) or (floor and not known and tonumber(call('GET', floor) or 0)) or 0
local start = fence
local poisoned = raw[3] == '1'
local claimant = raw[4] or ''
local touched = raw[5] or '0'
local writer, seats = nil, {}
local readers, graves, latest, exact, earliest = 0, 0, 0, true, 0
local leases, changed = {}, {} -- by field: until when, or false for none; those to write

if raw[6] then
  local since, ends, bad, size, rest = match(raw[6], '^(%d+) (%d+) (%d) (%d+) (.*)$')
  size = tonumber(size)
  writer = {
    token = rest:sub(1, size), note = rest:sub(size + 1), since = tonumber(since), ends = tonumber(ends),
    poisoned = bad == '1',
  }
end
if raw[7] then
  local at, size = 1, #raw[7]
  while at <= size do
    local _, last, mode, turn, ends, called, grace, length =
      raw[7]:find('^([rw])([01]) (%d+) (%d+) (%d+) (%d+) ', at)
    at = last + tonumber(length) + 1
    seats[#seats + 1] = {
      id = raw[7]:sub(last + 1, at - 1), mode = mode, turn = turn == '1', ends = tonumber(ends),
      called = tonumber(called), grace = tonumber(grace),
    }
  end
end
if raw[8] then
  local a, b, c, d, e = match(raw[8], '^(%d+) (%d+) (%d+) (%d) (%d+)$')
  readers, graves, latest, exact, earliest = tonumber(a), tonumber(b), tonumber(c), d == '1', tonumber(e)
end

-- Anything else than an Acquire must work in a full memory too.
local firm, tokens = false, {}
do
  local at = 5
  while ARGV[at] do
    local op = ARGV[at]
    if op ~= 'A' then firm = true end
    if raw[8] and NAMES_A_TOKEN[op] then
      tokens[#tokens + 1], tokens[#tokens + 2] = 'r:' .. ARGV[at + 2], 'g:' .. ARGV[at + 2]
    end
    at = at + 2 + WIDTH[op]
  end
end
if #tokens > 0 then
  local ends = call('HMGET', key, unpack(tokens))
  for i, field in ipairs(tokens) do
    leases[field] = ends[i] and tonumber(ends[i])
  end
end

-- Readers and graves -------------------------------------------------------------------------------------------------

-- Looks at each of them once: the dead go, and the bounds become exact. True if any was dead.
local function sweep()
  local all, dead = call('HGETALL', key), false
  for i = 1, #all, 2 do
    local kind = all[i]:sub(1, 2)
    if (kind == 'r:' or kind == 'g:') and leases[all[i]] == nil then
      leases[all[i]] = tonumber(all[i + 1])
    end
  end
  readers, graves, latest, exact, earliest = 0, 0, 0, true, 0
  for field, ends in pairs(leases) do
    if ends and ends <= now then
      leases[field], changed[field], dead = false, true, true
    elseif ends then
      if field:sub(1, 1) == 'r' then
        readers, latest = readers + 1, max(latest, ends)
      else
        graves = graves + 1
      end
      if earliest == 0 or ends < earliest then earliest = ends end
    end
  end
  return dead
end

local function keep(field, ends)
  local old = leases[field]
  leases[field], changed[field] = ends, true
  if field:sub(1, 1) == 'r' then
    if not old then readers = readers + 1 end
    if ends >= latest then latest, exact = ends, true end
  elseif not old then
    graves = graves + 1
  end
  if earliest == 0 or ends < earliest then earliest = ends end
end

local function leave_reading(field)
  if leases[field] >= latest then exact = false end
  leases[field], changed[field] = false, true
  readers = readers - 1
  if readers == 0 then latest, exact = 0, true end
  if readers + graves == 0 then earliest = 0 end
end

-- Who goes next (turns.py) -------------------------------------------------------------------------------------------

local wakes, claim -- of the command at hand
local queue

-- Made when it is needed: most locks are free most of the time, and to make a function takes longer than to run it.
local function waiting()
  if queue then return queue end

  local function lapsed(seat)
    return 0 < seat.called and seat.called <= now
  end

  local function summon(seat)
    local window = max(claim, seat.grace)
    seat.called = now + window
    wakes[#wakes + 1], wakes[#wakes + 2] = seat.id, 0
    return window
  end

  local function first_writer(from)
    for i = from, #seats do
      if seats[i].mode == 'w' and not lapsed(seats[i]) then return i end
    end
    return nil
  end

  local function blocked_until(id, mode)
    if writer then return writer.ends end
    if mode == 'w' and readers > 0 then
      if not exact then sweep() end
      return latest
    end
    local turns, ahead, seen = 0, 0, false
    for _, other in ipairs(seats) do
      if other.id == id then
        if other.turn then return 0 end
        seen = true
      elseif other.mode == 'r' then
        if other.turn and other.called > now then turns = max(turns, other.called) end
      elseif not seen and ahead == 0 and not lapsed(other) then
        ahead = other.called > 0 and other.called or other.ends
      end
    end
    -- Turns hold readers back only by way of the writer who waits for them.
    return turns > 0 and (ahead > 0 or mode == 'w') and turns or ahead
  end

  -- A writer left: every reader that waits has its turn.
  local function turns()
    for _, seat in ipairs(seats) do
      if seat.mode == 'r' then
        seat.turn = true
        summon(seat)
      end
    end
  end

  local function call_next()
    if writer then return end
    local first, turns = first_writer(1), 0
    for i, seat in ipairs(seats) do
      if seat.mode == 'r' then
        if seat.turn then
          turns = max(turns, seat.called - now)
        elseif (not first or i < first) and seat.called == 0 then
          summon(seat)
        end
      end
    end
    if not first or seats[first].called > 0 or readers > 0 then return end
    if turns > 0 then
      wakes[#wakes + 1], wakes[#wakes + 2] = seats[first].id, turns
    else
      turns = summon(seats[first])
    end
    local second = first_writer(first + 1)
    if second then
      wakes[#wakes + 1], wakes[#wakes + 2] = seats[second].id, turns
      return
    end
    for i = first + 1, #seats do
      if seats[i].called == 0 then wakes[#wakes + 1], wakes[#wakes + 2] = seats[i].id, turns end
    end
  end

  local function give_up(id)
    for i = #seats, 1, -1 do
      if seats[i].id == id then table.remove(seats, i) end
    end
  end

  local function settle(seat, more)
    if not more then
      give_up(seat)
      return false
    end
    for _, other in ipairs(seats) do
      if other.id == seat then
        if other.mode == 'w' then other.called = 0 end
        return true
      end
    end
    return false
  end

  local function refuse(seat, mode, place)
    for _, other in ipairs(seats) do
      if other.id == seat then
        other.ends = now + place
        if lapsed(other) then other.grace = math.min(2 * max(claim, other.grace), place) end
        other.called = 0
        return
      end
    end
    seats[#seats + 1] = {id = seat, mode = mode, turn = false, ends = now + place, called = 0, grace = 0}
  end

  queue = {
    blocked_until = blocked_until, turns = turns, call_next = call_next, give_up = give_up, settle = settle,
    refuse = refuse,
  }
  return queue
end

local function writer_leaves()
  writer = nil
  if #seats > 0 then waiting().turns() end
end

-- The commands (rules.py). Each returns verdict, poisoned, seated ----------------------------------------------------

local function bury()
  local buried = earliest > 0 and earliest <= now and sweep()
  for i = #seats, 1, -1 do
    if seats[i].ends <= now then
      table.remove(seats, i)
      buried = true
    end
  end
  if writer and writer.ends <= now then
    buried = true
    poisoned = poisoned or writer.token ~= ''
    writer_leaves()
  end
  return buried
end

local function settle(seat, more)
  return #seats > 0 and seat ~= '' and waiting().settle(seat, more)
end

local function stay(field, ttl)
  keep(field, max(leases[field], now + ttl))
  return GRANTED, poisoned
end

local function acquire(token, mode, ttl, seat, place, more, expect, note)
  local field = 'r:' .. token
  if leases['g:' .. token] then return BURIED end
  local writes = writer and writer.token == token
  if writes or leases[field] then
    if (writes and true or false) ~= (mode == 'w') then return HELD end
    if writes then
      writer.ends = max(writer.ends, now + ttl)
      return GRANTED, writer.poisoned, settle(seat, more)
    end
    local verdict, bad = stay(field, ttl)
    return verdict, bad, settle(seat, more)
  end
  if expect and (fence ~= expect or poisoned) then return MISMATCH, poisoned end
  if writer or mode == 'w' and readers > 0 or #seats > 0 and waiting().blocked_until(seat, mode) > 0 then
    if seat == '' then return HELD end
    waiting().refuse(seat, mode, place)
    return HELD, false, true
  end
  local found = poisoned
  if mode == 'w' then
    fence = fence + 1
    writer = {token = token, since = now, ends = now + ttl, note = note, poisoned = found}
    poisoned = false
  else
    keep(field, now + ttl)
  end
  touched = now
  return GRANTED, found, settle(seat, more)
end

local function release(token, min_hold, poison)
  if writer and writer.token == token then
    if poison ~= 'clear' then poisoned = poison == 'set' or writer.poisoned end
    if min_hold > 0 and writer.since + min_hold > now then
      writer = {token = '', note = '', since = writer.since, ends = writer.since + min_hold, poisoned = false}
    else
      writer_leaves()
    end
  elseif leases['r:' .. token] then
    leave_reading('r:' .. token)
  else
    return GONE
  end
  touched = now
  return GRANTED
end

local dropped = false

-- Made when it is needed, as above.
local function rare(op, a, b)
  local function renew(token, ttl)
    if writer and writer.token == token then
      writer.ends = max(writer.ends, now + ttl)
      return GRANTED, writer.poisoned
    end
    if leases['r:' .. token] then return stay('r:' .. token, ttl) end
    return GONE
  end

  local function downgrade(token, ttl)
    local field = 'r:' .. token
    if writer and writer.token == token then
      keep(field, max(writer.ends, now + ttl))
      touched = now
      writer_leaves()
      return GRANTED, poisoned
    end
    if leases[field] then return stay(field, ttl) end
    return GONE
  end

  local function undo(token)
    keep('g:' .. token, now + GRAVE)
    touched = now
    if writer and writer.token == token then
      poisoned = writer.poisoned
      writer_leaves()
    elseif leases['r:' .. token] then
      leave_reading('r:' .. token)
    else
      return GONE
    end
    return GRANTED
  end

  local function advance(token, to)
    if to == fence and token == claimant then return GRANTED end
    if to > now then return EARLY end
    if to <= fence then return LATE end
    fence, claimant, touched = to, token, now
    return GRANTED
  end

  local function force()
    if not writer and readers == 0 then return GONE end
    sweep()
    for field, ends in pairs(leases) do
      if ends and field:sub(1, 1) == 'r' then leases[field], changed[field] = false, true end
    end
    readers, latest, exact = 0, 0, true
    if graves == 0 then earliest = 0 end
    if writer then
      poisoned = poisoned or writer.token ~= ''
      writer_leaves()
    end
    touched = now
    return GRANTED
  end

  local function mend()
    poisoned, touched = false, now
    if writer then writer.poisoned = false end
    return GRANTED
  end

  local function purge(idle)
    local used = writer or readers + graves > 0 or #seats > 0 or poisoned or claimant ~= ''
    return (used or tonumber(touched) + idle > now) and HELD or GRANTED
  end

  -- Not of the law: drops the name where Purge would allow it. What stays is only the fence.
  local function drop(idle)
    if not known or (not raw[5] and not floor) or purge(idle) ~= GRANTED then return HELD end
    dropped = true
    return GRANTED
  end

  if op == 'N' then return renew(a, tonumber(b)) end
  if op == 'D' then return downgrade(a, tonumber(b)) end
  if op == 'U' then return undo(a) end
  if op == 'T' then return advance(a, tonumber(b)) end
  if op == 'F' then return force() end
  if op == 'M' then return mend() end
  if op == 'P' then return purge(tonumber(a)) end
  return drop(tonumber(a))
end

-- Step ---------------------------------------------------------------------------------------------------------------

local answer, told = {0}, {}
do
  local at = 5
  while ARGV[at] do
    local op, a, b, c = ARGV[at], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    wakes, claim = {}, tonumber(ARGV[at + 1])
    local verdict, found, seated, retry = nil, false, false, 0
    local buried = bury()
    if op == 'A' then
      verdict, found, seated = acquire(a, b, tonumber(c), ARGV[at + 5], tonumber(ARGV[at + 6]), ARGV[at + 7] == '1',
        tonumber(ARGV[at + 8]), ARGV[at + 9])
    elseif op == 'R' then
      verdict = release(a, tonumber(b), c)
    elseif op == 'L' then
      waiting().give_up(a)
      verdict = GRANTED
    elseif op == 'V' then
      verdict = buried and GRANTED or GONE
    else
      verdict, found = rare(op, a, b)
    end
    if #seats > 0 then waiting().call_next() end
    if verdict == HELD and op == 'A' then retry = max(0, waiting().blocked_until(ARGV[at + 5], b) - now) end
    local reply = {verdict, fence, found and 1 or 0, retry, seated and 1 or 0}
    for i, word in ipairs(wakes) do reply[5 + i] = word end
    for i = 1, #wakes, 2 do told[#told + 1], told[#told + 2] = wakes[i], wakes[i + 1] end
    answer[#answer + 1] = reply
    at = at + 2 + WIDTH[op]
  end
end

-- Save: deletions first, for after them a full memory refuses nothing more; the wakes last --------------------------

local int = function(number) return format('%.0f', number) end
if dropped then
  if floor then
    call('DEL', key)
    if fence > tonumber(call('GET', floor) or 0) then call('SET', floor, int(fence)) end
  else
    call('HDEL', key, 'touched')
  end
  return answer
end

local sets, dels = {}, {''}
local function put(field, old, value)
  if value == (old or '') then return end
  if value == '' then
    dels[#dels + 1] = field
  else
    sets[#sets + 1], sets[#sets + 2] = field, value
  end
end

put('poison', raw[3], poisoned and '1' or '')
put('claimant', raw[4], claimant)
if touched ~= (raw[5] or '0') then put('touched', raw[5], int(touched)) end
put('writer', raw[6], writer and format('%.0f %.0f %d %d ', writer.since, writer.ends, writer.poisoned and 1 or 0,
  #writer.token) .. writer.token .. writer.note or '')
local queue = {}
for i, seat in ipairs(seats) do
  queue[i] = format('%s%d %.0f %.0f %.0f %d ', seat.mode, seat.turn and 1 or 0, seat.ends, seat.called, seat.grace,
    #seat.id) .. seat.id
end
put('seats', raw[7], table.concat(queue))
put('lease', raw[8], readers + graves > 0 and
  format('%d %d %.0f %d %.0f', readers, graves, latest, exact and 1 or 0, earliest) or '')
for field in pairs(changed) do
  if leases[field] then
    sets[#sets + 1], sets[#sets + 2] = field, int(leases[field])
  else
    dels[#dels + 1] = field
  end
end
if #sets > 0 or fence ~= start then
  if fence > 0 then put('fence', raw[2], int(fence)) end
  if not known then sets[#sets + 1], sets[#sets + 2] = 'v', VERSION end
end

-- Every call writes something, if only nothing: a replica then refuses it instead of answering from its past.
if firm or #dels > 1 or #sets == 0 then
  for i = 1, #dels, CHUNK do call('HDEL', key, unpack(dels, i, math.min(i + CHUNK - 1, #dels))) end
end
for i = 1, #sets, 2 * CHUNK do
  call('HSET', key, unpack(sets, i, math.min(i + 2 * CHUNK - 1, #sets)))
end

if ARGV[3] ~= '' then
  for i = 1, #told, 2 do
    local channel = match(told[i], '^(.*)/[^/]*$')
    if channel and channel ~= ARGV[2] then
      local sent = redis.pcall(ARGV[3], ARGV[4] .. channel, format('%.0f %d ', told[i + 1], #told[i]) .. told[i] .. key)
      if type(sent) == 'table' and sent.err then answer[1] = answer[1] + 1 end
    end
  end
end
return answer
