-- The law of coordination/rules.py where Redis and Valkey keep the states: one hash for each lock, one call for all
-- commands of that lock. The differential suite keeps this file and rules.py equal; change both together.
--
-- KEYS[1]  the lock.  KEYS[2]  the floor of fences (not on a cluster, where a name that is dropped keeps its fence).
-- ARGV     now in ms ("" is the server's clock), the asker's channel, PUBLISH or SPUBLISH or "", what comes before a
--          channel's name, then the commands: an operation, its claim window and its arguments.
-- Returns  how many wakes could not be published, then for each command {verdict, fence, poisoned, retry, seated,
--          seat, delay, seat, delay, ...}; or only minus the version of a state that was written by a newer law.
--
-- Fields   v, the version; state, packed, for text takes several times as long to read and write; r:<token> and
--          g:<token>, until when a reader reads, until when an undone token is refused. How many of these there are,
--          the readers' latest end, whether that is exact or only a bound, and a bound of the earliest end are in the
--          state. So readers come and go without a scan.

local VERSION, GRAVE = 1, 30000
local CHUNK = 1000

local key, floor = KEYS[1], KEYS[2]
local call, format, match = redis.call, string.format, string.match
local max = math.max
local pack, read = struct.pack, struct.unpack

local function int(number)
  return format('%.0f', number)
end

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

if ARGV[5] == '?' then
  return {now, floor and call('GET', floor) or '0', call('HGETALL', key)}
end

-- Tells these seats, each with its delay, unless the asker will tell them. Returns how many could not be told.
local function publish(wakes)
  local unheard = 0
  for i = 1, ARGV[3] ~= '' and #wakes or 0, 2 do
    local seat = wakes[i]
    local channel = match(seat, '^(.*)/[^/]*$')
    if channel and channel ~= ARGV[2] then
      local sent = redis.pcall(ARGV[3], ARGV[4] .. channel, format('%.0f %d ', wakes[i + 1], #seat) .. seat .. key)
      if type(sent) == 'table' and sent.err then unheard = unheard + 1 end
    end
  end
  return unheard
end

-- Load ---------------------------------------------------------------------------------------------------------------

-- Instants are doubles, which hold integers up to 2^53. A text stands behind its length. `redis_wire.py` reads this too.
local STATE, WRITER, SEAT = '>BddHc0I4I4dBdB', '>ddBHc0I4c0', '>c1BdddHc0'

local kept = call('HMGET', key, 'v', 'state')
local version, before = tonumber(kept[1] or 0), kept[2]
if version > VERSION then return {-version} end

local poisoned, fence, touched, claimant, readers, graves, latest, exact, earliest, writes, at =
  0, 0, 0, '', 0, 0, 0, 1, 0, 0, 1
if before then
  poisoned, fence, touched, claimant, readers, graves, latest, exact, earliest, writes, at = read(STATE, before)
elseif call('EXISTS', key) == 1 then
  return redis.error_reply('WRONGTYPE this key holds something else than a lock')
elseif floor then
  fence = tonumber(call('GET', floor) or 0)
end

-- The short way: somebody enters where nobody is or only others read, and expects nothing; or leaves while nobody waits.
-- Most come and go like that, and to make the functions of the whole law takes longer than all of this.
if before and graves == 0 then
  local op, token, count = ARGV[5], ARGV[7], #ARGV
  local open = at > #before -- neither a writer nor seats
  if op == 'A' and count == 14 and open and ARGV[13] == '' then
    local ends, found, note = now + ARGV[9], poisoned, ARGV[14]
    if ARGV[8] == 'w' and readers == 0 then
      fence = fence + 1
      call('HSET', key, 'state', pack(STATE, 0, fence, now, #claimant, claimant, 0, 0, 0, 1, 0, 1)
        .. pack(WRITER, now, ends, found, #token, token, #note, note))
      return {0, {'granted', fence, found, 0, 0}}
    end
    if ARGV[8] == 'r' and (readers == 0 or earliest > now and not call('HMGET', key, 'r:' .. token)[1]) then
      if ends >= latest then latest, exact = ends, 1 end
      if readers == 0 or ends < earliest then earliest = ends end
      call('HSET', key, 'r:' .. token, int(ends), 'state',
        pack(STATE, found, fence, now, #claimant, claimant, readers + 1, 0, latest, exact, earliest, 0))
      return {0, {'granted', fence, found, 0, 0}}
    end
  elseif op == 'R' and count == 9 then
    local left = false
    if writes == 1 and ARGV[8] == '0' and ARGV[9] == 'clear' then
      local _, ends, _, holder, _, behind = read(WRITER, before, at)
      left = holder == token and ends > now and behind > #before
      if left then call('HDEL', key, '') end -- as at the end
    elseif open and readers > 0 and earliest > now then
      local ends = call('HMGET', key, 'r:' .. token)[1]
      if ends then
        left, readers = true, readers - 1
        call('HDEL', key, 'r:' .. token)
        if tonumber(ends) >= latest then exact = 0 end
        if readers == 0 then latest, exact, earliest = 0, 1, 0 end
      end
    end
    if left then
      call('HSET', key, 'state',
        pack(STATE, poisoned, fence, now, #claimant, claimant, readers, 0, latest, exact, earliest, 0))
      return {0, {'granted', fence, 0, 0, 0}}
    end
  end
end

-- The short way from one writer to the next, where only writers wait, and none of them has died or came too late when it
-- was called: the writer leaves and calls the first in line; the first in line enters; somebody joins the line; or a
-- writer leaves and a request of its process travels with that. Seats stay packed, but for the first and the asker's.
local leaves = ARGV[5] == 'R' and ARGV[8] == '0' and 'clear' == ARGV[9]
local asks = leaves and 10 or 5
local wants = ARGV[asks] == 'A' and ARGV[asks + 3] == 'w' and ARGV[asks + 8] == ''
if before and graves == 0 and readers == 0 and at <= #before and #ARGV == asks + (wants and 9 or -1) then
  local id, size = wants and ARGV[asks + 5], #before
  local _, ends, holder, line = nil, 0, '', at
  if writes == 1 then _, ends, _, holder, _, line = read(WRITER, before, at) end
  local first, expires, called, patience, second, rest = nil, 0, 0, 0, nil, size + 1
  local from, past, grace = size + 1, size + 1, 0 -- where the asker's seat begins and ends
  local short, here = writes == 0 or ends > now, line
  while short and here <= size do
    local mode, _, lasts, summoned, grown, seat, behind = read(SEAT, before, here)
    short = mode == 'w' and lasts > now and (summoned == 0 or summoned > now)
    if here == line then
      first, expires, called, patience, rest = seat, lasts, summoned, grown, behind
    elseif not second then
      second = seat
    end
    if seat == id then from, past, grace = here, behind, grown end
    here = behind
  end
  local enters = wants and (leaves or writes == 0) and (not first or first == id)
  if leaves then
    short = short and holder == ARGV[7] and called == 0
  elseif writes == 1 then
    short = short and holder ~= ARGV[7]
  elseif not enters then
    short = short and called > 0 -- as it should be: the step before has called the first
  end
  if short and (enters or id ~= '') then
    local answer, told, writing = {0}, {}, before:sub(at, line - 1)
    if leaves then
      touched, writes, writing, answer[2] = now, 0, '', {'granted', fence, 0, 0, 0}
      if first then
        local window = max(tonumber(ARGV[6]), patience)
        called, told = now + window, second and {first, 0, second, window} or {first, 0}
        for i, word in ipairs(told) do answer[2][5 + i] = word end
      end
      call('HDEL', key, '') -- as at the end
    end
    local ahead = first and pack(SEAT, 'w', 0, expires, called, patience, #first, first) or ''
    local behind = before:sub(rest)
    if enters then
      local token, note, stays = ARGV[asks + 2], ARGV[asks + 9], first and ARGV[asks + 7] == '1'
      fence, touched, writes = fence + 1, now, 1
      writing = pack(WRITER, now, now + ARGV[asks + 4], poisoned, #token, token, #note, note)
      ahead = stays and pack(SEAT, 'w', 0, expires, 0, patience, #first, first) or ''
      answer[#answer + 1] = {'granted', fence, poisoned, 0, stays and 1 or 0}
      poisoned = 0
    elseif wants then
      local place = pack(SEAT, 'w', 0, now + ARGV[asks + 6], 0, grace, #id, id)
      if first == id then
        ahead = place
      else
        behind = before:sub(rest, from - 1) .. place .. before:sub(past)
      end
      answer[#answer + 1] = {'held', fence, 0, (writes == 1 and ends or called) - now, 1}
    end
    call('HSET', key, 'state', pack(STATE, poisoned, fence, touched, #claimant, claimant, 0, 0, latest, exact, earliest,
      writes) .. writing .. ahead .. behind)
    answer[1] = publish(told)
    return answer
  end
end

poisoned, exact = poisoned == 1, exact == 1
local writer, seats = nil, {}
local leases, changed = {}, {} -- by field: until when, or false for none; those to write

if before then
  if writes == 1 then
    local since, ends, found, token, note
    since, ends, found, token, note, at = read(WRITER, before, at)
    writer = {token = token, note = note, since = since, ends = ends, poisoned = found == 1}
  end
  local size = #before
  while at <= size do
    local mode, turn, ends, called, grace, id
    mode, turn, ends, called, grace, id, at = read(SEAT, before, at)
    seats[#seats + 1] = {id = id, mode = mode, turn = turn == 1, ends = ends, called = called, grace = grace}
  end
end

local function packed()
  local parts = {
    pack(STATE, poisoned and 1 or 0, fence, touched, #claimant, claimant, readers, graves, latest, exact and 1 or 0,
      earliest, writer and 1 or 0),
  }
  if writer then
    parts[2] = pack(WRITER, writer.since, writer.ends, writer.poisoned and 1 or 0, #writer.token, writer.token,
      #writer.note, writer.note)
  end
  for _, seat in ipairs(seats) do
    parts[#parts + 1] = pack(SEAT, seat.mode, seat.turn and 1 or 0, seat.ends, seat.called, seat.grace, #seat.id, seat.id)
  end
  return table.concat(parts)
end
local known = before
if not known then before = packed() end

local WIDTH = {A = 8, N = 2, D = 2, R = 3, U = 1, L = 1, T = 2, F = 0, M = 0, V = 0, P = 1, X = 1}
local NAMES_A_TOKEN = {A = true, N = true, D = true, R = true, U = true}

-- Anything else than an Acquire must work in a full memory too.
local firm, tokens = false, {}
do
  local at = 5
  while ARGV[at] do
    local op = ARGV[at]
    if op ~= 'A' then firm = true end
    if NAMES_A_TOKEN[op] then
      if readers > 0 then tokens[#tokens + 1] = 'r:' .. ARGV[at + 2] end
      if graves > 0 then tokens[#tokens + 1] = 'g:' .. ARGV[at + 2] end
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

local function writer_leaves()
  writer = nil
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

local function stay(field, ttl)
  keep(field, max(leases[field], now + ttl))
  return 'granted', poisoned
end

local function acquire(token, mode, ttl, seat, place, more, expect, note)
  local field = 'r:' .. token
  if leases['g:' .. token] then return 'buried' end
  local writes = writer and writer.token == token
  if writes or leases[field] then
    if (writes and true or false) ~= (mode == 'w') then return 'held' end
    if writes then
      writer.ends = max(writer.ends, now + ttl)
      return 'granted', writer.poisoned, settle(seat, more)
    end
    local verdict, bad = stay(field, ttl)
    return verdict, bad, settle(seat, more)
  end
  if expect and (fence ~= expect or poisoned) then return 'mismatch', poisoned end
  if writer or mode == 'w' and readers > 0 or #seats > 0 and blocked_until(seat, mode) > 0 then
    if seat == '' then return 'held' end
    refuse(seat, mode, place)
    return 'held', false, true
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
  return 'granted', found, settle(seat, more)
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
    return 'gone'
  end
  touched = now
  return 'granted'
end

local dropped = false

-- Made when it is needed: to make functions takes longer than to run one.
local function rare(op, a, b)
  local function renew(token, ttl)
    if writer and writer.token == token then
      writer.ends = max(writer.ends, now + ttl)
      return 'granted', writer.poisoned
    end
    if leases['r:' .. token] then return stay('r:' .. token, ttl) end
    return 'gone'
  end

  local function downgrade(token, ttl)
    local field = 'r:' .. token
    if writer and writer.token == token then
      keep(field, max(writer.ends, now + ttl))
      touched = now
      writer_leaves()
      return 'granted', poisoned
    end
    if leases[field] then return stay(field, ttl) end
    return 'gone'
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
      return 'gone'
    end
    return 'granted'
  end

  local function advance(token, to)
    if to == fence and token == claimant then return 'granted' end
    if to > now then return 'early' end
    if to <= fence then return 'late' end
    fence, claimant, touched = to, token, now
    return 'granted'
  end

  local function force()
    if not writer and readers == 0 then return 'gone' end
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
    return 'granted'
  end

  local function mend()
    poisoned, touched = false, now
    if writer then writer.poisoned = false end
    return 'granted'
  end

  local function purge(idle)
    local used = writer or readers + graves > 0 or #seats > 0 or poisoned or claimant ~= ''
    return (used or touched + idle > now) and 'held' or 'granted'
  end

  -- Not of the law: drops the name where Purge would allow it. What stays is only the fence.
  local function drop(idle)
    if not known or (touched == 0 and not floor) or purge(idle) ~= 'granted' then return 'held' end
    dropped = true
    return 'granted'
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
      give_up(a)
      verdict = 'granted'
    elseif op == 'V' then
      verdict = buried and 'granted' or 'gone'
    else
      verdict, found = rare(op, a, b)
    end
    if #seats > 0 then call_next() end
    if verdict == 'held' and op == 'A' then retry = max(0, blocked_until(ARGV[at + 5], b) - now) end
    local reply = {verdict, fence, found and 1 or 0, retry, seated and 1 or 0}
    for i, word in ipairs(wakes) do reply[5 + i] = word end
    for i = 1, #wakes, 2 do told[#told + 1], told[#told + 2] = wakes[i], wakes[i + 1] end
    answer[#answer + 1] = reply
    at = at + 2 + WIDTH[op]
  end
end

-- Save: deletions first, for after them a full memory refuses nothing more; the wakes last --------------------------

if dropped then
  touched = 0
  if floor then
    call('DEL', key)
    if fence > tonumber(call('GET', floor) or 0) then call('SET', floor, int(fence)) end
    return answer
  end
end

local sets, dels = {}, {''}
for field in pairs(changed) do
  if leases[field] then
    sets[#sets + 1], sets[#sets + 2] = field, int(leases[field])
  else
    dels[#dels + 1] = field
  end
end
local after = packed()
if after ~= before then
  sets[#sets + 1], sets[#sets + 2] = 'state', after
  if not known then sets[#sets + 1], sets[#sets + 2] = 'v', VERSION end
end

-- Every call writes something, if only nothing: a replica then refuses it instead of answering from its past.
if firm or #dels > 1 or #sets == 0 then
  for i = 1, #dels, CHUNK do call('HDEL', key, unpack(dels, i, math.min(i + CHUNK - 1, #dels))) end
end
for i = 1, #sets, 2 * CHUNK do
  call('HSET', key, unpack(sets, i, math.min(i + 2 * CHUNK - 1, #sets)))
end

answer[1] = publish(told)
return answer
